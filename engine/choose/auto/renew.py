"""Make the tables of `auto`: rank every eligible variant and some configs by simulated time.

First, each rung is simulated with its defaults at one head_dim; rungs that are never within `_KEEP`
of the fastest are dropped. For the others, one tunable is varied at a time. This search is done for
two compute capabilities: sm_89, and sm_75, which lacks cp.async and has less shared memory. For
others, the best kernels of sm_89 are ranked, and rungs that need a newer GPU are searched. As the
tensor cores of sm_75 have no BF16, its scalar rungs are also ranked separately. Rungs of the
backward pass are searched on a few problems and have their own tables. Compiled kernels and
simulated times are cached on disk, so a later run only does what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from math import inf

from engine.attention.config import fitting_config
from engine.attention.plan import BF16_CAPABILITY
from engine.attention.problem import Direction, Problem
from engine.base import files
from engine.base.errors import AttuneError
from engine.choose.auto.candidates import Row, Table, code_digest, eligible, read_table, table_path
from engine.cuda_source.nvrtc import toolchain
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.history import History
from engine.model.kernel import Kernel
from kernels.variant import Config, Variant

# The GPU that represents each compute capability.
GPUS = {
    (8, 9): "L4",
    (9, 0): "H200",
    (8, 0): "A100 80GB SXM",
    (12, 0): "RTX 5090",
    (8, 6): "RTX A6000",
    (10, 0): "B200",
    (7, 5): "T4",
}
_REFERENCE = (8, 9)  # searched in full; others rank its best kernels
_SEARCHED = (_REFERENCE, (7, 5))
_BACKWARD = ((8, 0),)
_HEAD_DIMS = (64, 128)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 16384)
HEADS = (1, 8, 32, 64, 128, 512)
_KEYS = (512, 2048, 8192, 32768)  # keys of decoding problems, one query each
_DECODED_HEADS = (8, 32, 128, 1024)
_GROUPS = (1, 8)
_KEEP = 1.3  # × the fastest: a rung that is slower on all problems is not tuned
# × the fastest: kernels within it count as equal; of these, the lowest rung and its defaults are
# chosen.
_EQUAL = 1.03
_KEEP_CONFIG = 1.1  # a config that is slower on all problems is not tried with a causal mask
_BACKWARD_LENGTHS, _BACKWARD_HEADS = (512, 2048), 32
_SPLITS = (1, 4, 16, 64)  # values of `num_splits`; other numbers are close to one of them

_HISTORY = History()  # without times of sessions, because tables are simulated

OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Candidate:
    variant: Variant
    config: Config
    is_default: bool = False  # for this GPU


def directions(compute_capability: tuple[int, int]) -> tuple[Direction, ...]:
    """Return the directions for which a compute capability has a table."""
    return ("forward", "backward") if compute_capability in _BACKWARD else ("forward",)


def renew(
    compute_capability: tuple[int, int],
    direction: Direction = "forward",
    on_stage: OnStage = lambda _: None,
) -> Table:
    """Rank all candidates for one compute capability and direction, and write the table.

    Raises:
        UnknownName: no GPU represents it.
        ToolMissing: there is no compiler, or no nvdisasm.
        OSError: the table cannot be written.
    """
    device = find_device(GPUS[compute_capability])
    # Before ranking, because a file may change meanwhile.
    sources = {v.id: code_digest(v) for v in eligible(direction)}
    reference = read_table(_REFERENCE) if compute_capability not in _SEARCHED else None
    if direction == "backward":
        rows = _by_backward_search(device, on_stage)
    elif reference is not None:
        rows = _by_reference(device, reference, on_stage)
    else:
        rows = _by_search(device, eligible(), on_stage)
    if direction == "forward" and device.compute_capability < BF16_CAPABILITY:
        # Last, because of equally near rows the first whose kernel supports the problem is used.
        scalar = [v for v in eligible() if v.work.math_unit == "fma"]
        rows += _by_search(device, scalar, on_stage)
    table = Table(
        compute_capability=".".join(map(str, compute_capability)),
        gpu=device.name,
        num_sms=device.num_sms or 1,
        made=datetime.now(UTC).date().isoformat(),
        compiler=toolchain().exact_name,
        sources=sources,
        rows=tuple(rows),
    )
    path = table_path(compute_capability, direction)
    path.parent.mkdir(exist_ok=True)
    files.write(path, table.to_text().encode())
    return table


def _by_search(device: DeviceSpec, variants: Sequence[Variant], on_stage: OnStage) -> list[Row]:
    rows: list[Row] = []
    square = list(variants)
    decoding = [v for v in variants if v.gqa] or square
    for head_dim in _HEAD_DIMS:
        first = _ranked(device, _square(head_dim, causal=False), square, on_stage)
        causal = _Ranking(device, _square(head_dim, causal=True), on_stage)
        causal.add(first.near(_KEEP_CONFIG))
        few = _ranked(device, _decoding(head_dim), decoding, on_stage)
        rows += [*first.rows(), *causal.rows(), *few.rows()]
        square, decoding = (_variants_of(r.near(_KEEP)) for r in (first, few))
    return rows


def _by_backward_search(device: DeviceSpec, on_stage: OnStage) -> list[Row]:
    """Search the rungs on tensor cores; a rung on CUDA cores is never faster."""
    rungs = [v for v in eligible("backward") if v.work.math_unit == "tensor"]
    rows: list[Row] = []
    for head_dim, causal in product(_HEAD_DIMS, (False, True)):
        problems = [
            Problem(1, _BACKWARD_HEADS, seqlen, head_dim, causal=causal, direction="backward")
            for seqlen in _BACKWARD_LENGTHS
        ]
        rows += _ranked(device, problems, rungs, on_stage).rows()
    return rows


def _by_reference(device: DeviceSpec, reference: Table, on_stage: OnStage) -> list[Row]:
    """Rank the first and second kernels of the reference's rows on another GPU."""
    rows: list[Row] = []
    for head_dim in _HEAD_DIMS:
        for problems in (
            _square(head_dim, causal=False),
            _square(head_dim, causal=True),
            _decoding(head_dim),
        ):
            ranking = _Ranking(device, problems, on_stage)
            ranking.add(_candidates_of(reference, problems[0], device))
            if problems[0].seqlen > 1:
                _add_newer_rungs(ranking, device)
            rows += ranking.rows()
    return rows


def _add_newer_rungs(ranking: _Ranking, device: DeviceSpec) -> None:
    """Add rungs that the reference GPU cannot run and its table therefore lacks.

    They pad query rows to the 64 of a warpgroup and are therefore not tried on a single row.
    """
    beyond = [
        v
        for v in eligible()
        if _REFERENCE < v.min_compute_capability <= device.compute_capability
        and not (v.arch_specific and v.min_compute_capability != device.compute_capability)
    ]
    if not beyond:
        return
    ranking.add_defaults(beyond)
    names = {v.id for v in beyond}
    near = _variants_of(c for c in ranking.near(_KEEP) if c.variant.id in names)
    ranking.add_neighbours(near)


def _candidates_of(reference: Table, problem: Problem, device: DeviceSpec) -> list[_Candidate]:
    """Return candidates from the reference's rows with the same head_dim and mask and one or
    many queries."""
    candidates: dict[str, _Candidate] = {}
    variants = {variant.id: variant for variant in eligible()}
    for row in reference.rows:
        kind = (row.head_dim, row.causal, row.seqlen == 1)
        if kind != (problem.head_dim, problem.causal, problem.seqlen == 1):
            continue
        named = [_Candidate(variants[row.variant], row.config)] if row.variant in variants else []
        if row.beside in variants:
            named.append(_default(variants[row.beside], device, problem.head_dim))
        candidates |= {repr(c): c for c in named}
    return list(candidates.values())


def _ranked(
    device: DeviceSpec, problems: Sequence[Problem], first: Sequence[Variant], on_stage: OnStage
) -> _Ranking:
    """Rank the variants with their defaults, and of close ones also configs with one tunable
    changed."""
    ranking = _Ranking(device, problems, on_stage)
    ranking.add_defaults(first)
    ranking.add_neighbours(_variants_of(ranking.near(_KEEP)))
    return ranking


def _square(head_dim: int, *, causal: bool) -> list[Problem]:
    return [
        Problem(1, heads, seqlen, head_dim, causal=causal) for seqlen in LENGTHS for heads in HEADS
    ]


def _decoding(head_dim: int) -> list[Problem]:
    return [
        Problem(max(1, heads // 32), min(heads, 32), 1, head_dim, seqlen_kv=keys, num_heads_kv=kv)
        for keys in _KEYS
        for heads in _DECODED_HEADS
        for group in _GROUPS
        for kv in [min(heads, 32) // group]
    ]


def _default(variant: Variant, device: DeviceSpec, head_dim: int) -> _Candidate:
    """Return the config closest to the GPU's defaults that fits in shared memory."""
    direction: Direction = "backward" if variant.is_backward else "forward"
    short = Problem(1, 1, LENGTHS[0], head_dim, direction=direction)
    return _Candidate(variant, fitting_config(variant, {}, short, device), is_default=True)


def _variants_of(candidates: Iterable[_Candidate]) -> list[Variant]:
    variants = {c.variant.id: c.variant for c in candidates}
    return [variants[name] for name in sorted(variants)]


def _neighbours(default: _Candidate, device: DeviceSpec, *, splits: bool) -> Iterator[_Candidate]:
    """Yield the defaults with one tunable changed, or two if a default cannot hold all keys."""
    variant, config = default.variant, default.config
    for tunable in variant.tunables:
        for value in tunable.values_on(device.num_sms):
            if tunable.name == "num_splits" and not (splits and value in _SPLITS):
                continue
            if value != config[tunable.name]:
                yield _Candidate(variant, {**config, tunable.name: value})
    if "keys_per_warp" in config:
        most = {t.name: t.values[-1] for t in variant.tunables if t.name != "row_tiles"}
        yield _Candidate(variant, {**config, **most})


class _Ranking:
    """A ranking of candidates on problems that share their compiled kernels."""

    def __init__(self, device: DeviceSpec, problems: Sequence[Problem], on_stage: OnStage) -> None:
        self._device = device
        self._problems = problems
        self._stage = on_stage
        self._times: dict[Problem, list[tuple[_Candidate, float]]] = {p: [] for p in problems}

    def add(self, candidates: Iterable[_Candidate]) -> None:
        """Time candidates on every problem that they support."""
        chosen = list(candidates)
        # Nearly all the time goes into compiling and simulating, outside Python's lock.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for candidate, times in zip(chosen, pool.map(self._timed, chosen), strict=True):
                for problem, us in times:
                    self._times[problem].append((candidate, us))

    def add_defaults(self, variants: Iterable[Variant]) -> None:
        self.add(self._default(variant) for variant in variants)

    def add_neighbours(self, variants: Iterable[Variant]) -> None:
        """Add configs that differ from the defaults in one tunable."""
        splits = self._problems[0].seqlen == 1
        defaults = [self._default(variant) for variant in variants]
        self.add(c for d in defaults for c in _neighbours(d, self._device, splits=splits))

    def _default(self, variant: Variant) -> _Candidate:
        return _default(variant, self._device, self._problems[0].head_dim)

    def near(self, factor: float) -> list[_Candidate]:
        """Return candidates within `factor` of the fastest on some problem."""
        near: dict[str, _Candidate] = {}
        for times in self._times.values():
            fastest = min((us for _, us in times), default=inf)
            near |= {repr(c): c for c, us in times if us <= factor * fastest}
        return list(near.values())

    def rows(self) -> Iterator[Row]:
        for problem, times in self._times.items():
            if times:
                yield _row(problem, times)

    def _timed(self, candidate: _Candidate) -> list[tuple[Problem, float]]:
        shown = " ".join(f"{k}={v}" for k, v in candidate.config.items())
        where = f"{self._device.name}, {self._problems[0].label()}"
        self._stage(f"{where}: {candidate.variant.id} {shown}")
        times = ((p, self._us(candidate, p)) for p in self._problems)
        return [(problem, us) for problem, us in times if us is not None]

    def _us(self, candidate: _Candidate, problem: Problem) -> float | None:
        """Return the simulated time; None if it cannot run or be simulated, or spills registers."""
        kernel = Kernel.of(candidate.variant, self._device, candidate.config)
        try:
            if any(r.uses_local_memory for r in kernel.resources(problem)):
                return None
            result = _HISTORY.estimate(kernel, problem)
        except AttuneError:
            return None
        if not result.by_machine_code or result.latency is None:
            return None
        return result.latency.median_us


def _row(problem: Problem, times: Sequence[tuple[_Candidate, float]]) -> Row:
    """Return a row with the lowest rung and its defaults of all that are about as fast as the
    fastest."""
    fastest = min(us for _, us in times)
    equal = [item for item in times if item[1] <= fastest * _EQUAL]
    lowest = min(candidate.variant.id for candidate, _ in equal)
    pick, us = min(
        (item for item in equal if item[0].variant.id == lowest),
        key=lambda item: (not item[0].is_default, item[1]),
    )
    others = [item for item in times if item[0].variant.id != lowest]
    beside, beside_us = min(
        ((candidate.variant.id, other_us) for candidate, other_us in others),
        key=lambda item: item[1],
        default=("", 0.0),
    )
    return Row(
        head_dim=problem.head_dim,
        causal=problem.causal,
        seqlen=problem.seqlen,
        keys=problem.num_keys,
        heads=problem.batch * problem.num_heads,
        group=problem.head_group,
        variant=pick.variant.id,
        config=pick.config,
        us=us,
        beside=beside,
        beside_us=beside_us,
    )
