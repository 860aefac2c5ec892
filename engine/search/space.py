"""Search spaces: axes over problems, variants and tunables, and their points.

Constraints are checked here, before anything is compiled: a point that cannot run has a reason and
becomes a SKIPPED row. A point's id is the same on every machine and in every run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from itertools import product
from math import prod
from typing import Any

from engine.attention.config import default_config, find_variant, fitting_config
from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.attention.tensors import NORMAL, InputKind
from engine.base.errors import InvalidProblem, UnknownName
from engine.base.schema import Stored
from engine.cuda_on_host.client import Schedule
from engine.devices import target_gpu
from engine.devices.spec import DeviceSpec
from engine.model.occupancy import ConfiguredVariant
from engine.pipeline.request import (
    BackendChoice,
    Effort,
    EvaluationRequest,
)
from kernels.variant import Dtype, Variant

MAX_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class SweepOptions(Stored):
    """How every point is evaluated; fields as in `EvaluationRequest`."""

    gpu: str | None = None
    backend: BackendChoice = "auto"
    check: bool = False
    schedule: Schedule = "in_order"
    seed: int = 0
    timeout_s: float = 60.0
    execute: bool = True
    effort: Effort = "quick"  # the best points are measured again in the final round
    input_kind: InputKind = NORMAL
    refuse_spills: bool = False

    def request(
        self, variant: str, problem: Problem, config: Mapping[str, int]
    ) -> EvaluationRequest:
        """Return the request of one point."""
        return EvaluationRequest(
            variant=variant, problem=problem, config=dict(config), **asdict(self)
        )


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One evaluation; `why_not` is the sentence of a violated constraint."""

    id: str
    request: EvaluationRequest
    why_not: str | None = None

    @classmethod
    def of(cls, request: EvaluationRequest, device: DeviceSpec | None) -> SweepPoint:
        """Return the point of a request.

        Args:
            device: the GPU that the request names. If it names none, the evaluation checks
                constraints of the local GPU.
        """
        if device is not None:  # the request may have another of its names
            request = replace(request, gpu=device.name)
        values = tuple(request.config.items())
        configured = ConfiguredVariant(find_variant(request.variant), values, device)
        return cls(point_id(request), request, configured.unsupported(request.problem))


@dataclass(frozen=True, slots=True)
class ProblemAxes:
    """The values of each dimension; `problems` spans their product."""

    batch: tuple[int, ...] = (1,)
    num_heads: tuple[int, ...] = (1,)
    seqlen: tuple[int, ...] = (128,)
    head_dim: tuple[int, ...] = (64,)
    causal: tuple[bool, ...] = (False,)
    dtype: tuple[Dtype, ...] = ("float16",)
    seqlen_kv: tuple[int | None, ...] = (None,)  # None: as many keys as queries
    num_heads_kv: tuple[int | None, ...] = (None,)  # None: a K/V head for each query head

    def problems(self) -> tuple[Problem, ...]:
        """Return every combination once, batch slowest.

        Raises:
            InvalidProblem: a size out of range, a causal mask that hides all keys from a query,
                heads that cannot share K/V heads evenly, or more combinations than MAX_POINTS.
        """
        names = [f.name for f in fields(self)]
        axes = [tuple(dict.fromkeys(getattr(self, name))) for name in names]
        _limit(prod(map(len, axes)), "problems")
        # A key length equal to the query length is the same problem as none, and so are K/V heads
        # equal to the query heads.
        made = (Problem(**dict(zip(names, values, strict=True))) for values in product(*axes))
        return tuple(dict.fromkeys(made))


@dataclass(frozen=True, slots=True)
class Space(Stored):
    """Variants × problems × configs.

    `tunables` sets the values of single tunables in every variant that has them; others take the
    variant's values, or only their defaults if `own_values` is False. Tuned configs are ignored, so
    a space has the same points on every machine.

    Raises:
        UnknownName: an unknown variant, or a tunable that no variant has.
    """

    variants: tuple[str, ...]
    problems: tuple[Problem, ...]
    tunables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    own_values: bool = True

    def __post_init__(self) -> None:
        known = {t.name for name in self.variants for t in find_variant(name).tunables}
        for name in self.tunables:
            if name not in known:
                listing = ", ".join(sorted(known)) or "none"
                raise UnknownName(
                    f"None of the chosen variants has a tunable {name!r}: they have {listing}.",
                    code="tunable_of_no_variant",
                )

    def configs(
        self, variant: Variant, device: DeviceSpec | None = None
    ) -> Iterator[dict[str, int]]:
        """Return every combination of the variant's tunables, without checking constraints."""
        names = [t.name for t in variant.tunables]
        for values in product(*self._axes(variant, device)):
            yield dict(zip(names, values, strict=True))

    def count(self, gpu: str | None = None) -> int:
        """Return the number of points on a GPU, including those excluded by constraints, without
        enumerating them."""
        device = target_gpu(gpu) if gpu is not None else None
        axes = (self._axes(find_variant(name), device) for name in self.variants)
        per_problem = sum(prod(map(len, each)) for each in axes)
        return per_problem * len(self.problems)

    def points(self, options: SweepOptions) -> list[SweepPoint]:
        """Return every point, problem by problem.

        Raises:
            InvalidProblem: more than MAX_POINTS.
            UnknownName: the options name a GPU that is not in the table.
        """
        device = target_gpu(options.gpu) if options.gpu is not None else None
        _limit(self.count(options.gpu), "points")
        variants = [find_variant(name) for name in dict.fromkeys(self.variants)]
        configs = {variant.id: list(self.configs(variant, device)) for variant in variants}
        return [
            SweepPoint.of(options.request(variant.id, problem, chosen), device)
            for problem in self.problems
            for variant in variants
            for config in configs[variant.id]
            for chosen in [self._fitting(variant, config, problem, device)]
        ]

    def _fitting(
        self, variant: Variant, config: dict[str, int], problem: Problem, device: DeviceSpec | None
    ) -> dict[str, int]:
        """Return a config whose defaults, if it has any, fit the problem (`fitting_config`)."""
        if self.own_values:
            return config
        given = {name: value for name, value in config.items() if name in self.tunables}
        return fitting_config(variant, given, problem, device)

    def _axes(self, variant: Variant, device: DeviceSpec | None) -> list[tuple[int, ...]]:
        num_sms = device.num_sms if device is not None else None
        axes = []
        for t in variant.tunables:
            own = t.values_on(num_sms) if self.own_values else (t.default_on(num_sms),)
            axes.append(tuple(dict.fromkeys(self.tunables.get(t.name, own))))
        return axes


def point_id(request: EvaluationRequest) -> str:
    """Return 16 hex digits that identify the evaluation in any order or run.

    Fields at their defaults are left out, so that new fields do not change ids.
    """
    variant = find_variant(request.variant)
    named: dict[str, Any] = {
        "variant": variant.id,
        "problem": asdict(request.problem),
        "config": default_config(variant, request.config),
    }
    for f in fields(request):
        value = getattr(request, f.name)
        # Time limit and ranking do not change the evaluation.
        unnamed = (*named, "timeout_s", "refuse_spills")
        if f.name not in unnamed and f.default is not MISSING and value != f.default:
            named[f.name] = value
    defaults = {f.name: f.default for f in fields(Problem) if f.default is not MISSING}
    named["problem"] = {k: v for k, v in named["problem"].items() if defaults.get(k, ...) != v}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_values(text: str, name: str) -> tuple[int, ...]:
    """Parse the whole numbers of an axis: `1,2,4`, `64:512:64` (steps), `64:4096:x2` (factors),
    mixed.

    Ranges include both ends.

    Raises:
        InvalidProblem: anything else, or more than MAX_POINTS values.
    """
    values: list[int] = []
    try:
        for part in text.split(","):
            values += _parse_range(part.strip(), name)
            _limit(len(values), f"values of {name}")
    except ValueError:
        raise InvalidProblem(
            f"{name} takes whole numbers like 1,2,4, rising ranges from 1 like 64:512 or "
            f"64:512:64 (first, last, step), and factors like 64:4096:x2, not {text!r}.",
            code="values_form",
        ) from None
    return tuple(dict.fromkeys(values))


def _parse_range(part: str, name: str) -> list[int]:
    """Parse a range. Raises ValueError for anything else."""
    numbers = part.split(":")
    if len(numbers) == 1:
        return [int(part)]
    first, last = int(numbers[0]), int(numbers[1])
    step = numbers[2] if len(numbers) == 3 else "1"
    if len(numbers) > 3 or last < first or first < 1:
        raise ValueError
    if step.startswith("x"):
        return list(_geometric(first, last, int(step[1:])))
    if int(step) < 1:
        raise ValueError
    _limit((last - first) // int(step), f"values of {name}")
    return list(range(first, last + 1, int(step)))


def _geometric(first: int, last: int, factor: int) -> Iterator[int]:
    if factor < 2:
        raise ValueError
    while first <= last:
        yield first
        first *= factor


def _limit(count: int, what: str) -> None:
    if count > MAX_POINTS:
        raise InvalidProblem(
            f"That makes {count:,} {what}, and a sweep takes at most {MAX_POINTS:,}: choose fewer "
            "values.",
            code="sweep_too_large",
        )


# The place of an evaluation: machine and individual GPU.
#
# A GPU's name only gives its model. GPUs of one model differ by a few percent in clocks, cooling
# and power, so their times are kept apart unless the driver reports the same device.


_SHOWN_ID = len("GPU-5ac8f2e1")  # shown part of a GPU's UUID; other names are shown whole


@dataclass(frozen=True, slots=True)
class Location:
    """The machine and the GPU that executed an evaluation."""

    host: str = ""  # empty: not recorded
    gpu: str = ""  # its UUID; empty if no GPU executed it or it was not recorded

    def label(self, device: str) -> str:
        """Return `NVIDIA L4 (GPU-5ac8f2e1 on node7)`."""
        if not self.gpu:
            return f"{device} (which one was not recorded)"
        shown = self.gpu[:_SHOWN_ID] if self.gpu.startswith("GPU-") else self.gpu
        return f"{device} ({shown} on {self.host})"


UNKNOWN_LOCATION = Location()


def location_of(evaluation: Evaluation) -> Location:
    """Return the location of an evaluation by this process."""
    on_gpu = evaluation.execution is not None and evaluation.execution.backend == "cuda"
    return Location(platform.node(), local_gpu_id() if on_gpu else "")


def local_gpu_id() -> str:
    """Return the UUID of the GPU that this process uses.

    If the driver gives none, return machine and index.
    """
    from engine.devices.spec import detect_local

    local = detect_local()
    uuid = "" if isinstance(local, str) else local.uuid
    return uuid or f"{platform.node()}:{os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"
