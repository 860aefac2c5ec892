"""The sidebar's selection: widget keys, their defaults, and the resulting request.

Every key here is also a URL parameter, so that a reload or a link restores its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.shared import url_state
from engine.attention.config import all_variants, find_variant
from engine.attention.problem import Preset, Problem, parse_seqlens, presets
from engine.base.errors import InvalidProblem, UnknownName
from engine.choose.auto import Choice
from engine.devices import find_device
from engine.pipeline.request import BackendChoice, EvaluationRequest
from kernels.variant import Tunable, Variant

LOCAL_GPU = "local"
DEFAULT_GPU = "L4"
SIZES = {"B": 1, "H": 1, "S": 128, "D": 64}
# Values of the sliders; other values can be typed on the Tune page or come from a preset.
STOPS = {
    "H": (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128),
    "S": (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384),
}
SCHEDULES = ("in_order", "random", "reverse")
# Executors of kernels, and their names on the page.
BACKENDS: dict[BackendChoice, str] = {
    "auto": "GPU, else software",
    "cpu": "host build",
    "machine-code": "machine code",
    "cuda": "GPU",
}
FORMATS = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32"}
DTYPES = tuple(FORMATS)
FEATURES = (
    "window",
    "softcap",
    "DV",
    "alibi",
    "sinks",
    "kvfp8",
    "lse",
    "seqlens",
    "backward",
)  # under "More"


@dataclass(frozen=True, slots=True)
class Selection:
    """The sidebar's content. `problem` is None when it is invalid; `error` then says why."""

    variant: Variant
    config: dict[str, int]
    gpu: str | None  # None: the local GPU
    gpu_name: str
    problem: Problem | None
    error: str
    backend: BackendChoice
    check: bool
    schedule: str
    seed: int
    input_kind: str
    timeout_s: float
    # The choice of `auto`, if asked; if `auto` is selected, variant and config above are its
    # choice.
    choice: Choice | None = field(default=None, compare=False)

    def request(self, *, execute: bool) -> EvaluationRequest:
        """Return the selected evaluation as a request.

        Raises:
            InvalidProblem: The problem is invalid.
        """
        if self.problem is None:
            raise InvalidProblem(self.error)
        common = {"variant": self.variant.id, "problem": self.problem, "config": self.config}
        if not execute:
            # Execution options are left out: they change neither compile nor prediction.
            return EvaluationRequest(**common, gpu=self.gpu, execute=False)
        return EvaluationRequest(
            **common,
            gpu=self.gpu,
            backend=self.backend,
            check=self.check,
            schedule=self.schedule,
            seed=self.seed,
            timeout_s=self.timeout_s,
            input_kind=self.input_kind,
        )


def variant_label(variant: Variant) -> str:
    """Return a variant's label in a list: its id, and its title if that adds something."""
    return variant.id if variant.title == variant.id else f"{variant.id}  {variant.title}"


def tunable_key(variant: Variant, tunable: Tunable) -> str:
    """Return the key of a variant's tunable: values are not shared between variants."""
    return f"{variant.id}.{tunable.name}"


def make_problem(values: Mapping[str, Any]) -> tuple[Problem | None, str]:
    """Return the problem of widget values, or None and the reason why they are invalid."""
    try:
        seqlens = parse_seqlens(values["seqlens"]) if values["seqlens"] else None
        longest = max(seqlens) if seqlens else None
        problem = Problem(
            batch=len(seqlens) if seqlens else values["B"],
            num_heads=values["H"],
            seqlen=min(values["S"], longest or values["S"]),
            head_dim=values["D"],
            causal=bool(values["causal"]),
            dtype=values["dtype"],
            seqlen_kv=longest or values["KV"],
            num_heads_kv=values["HKV"],
            window=values["window"],
            softcap=values["softcap"],
            alibi=values["alibi"],
            sinks=values["sinks"],
            seqlens=seqlens,
            direction="backward" if values["backward"] else "forward",
            head_dim_v=values["DV"],
            kv_dtype="float8_e4m3" if values["kvfp8"] else None,
            lse=values["lse"],
        )
    except InvalidProblem as error:
        return None, str(error)
    return problem, ""


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return the widget values of a problem, the inverse of `make_problem`."""
    return {
        "B": problem.batch,
        "H": problem.num_heads,
        "HKV": problem.num_heads_kv,
        "S": problem.seqlen,
        "KV": problem.seqlen_kv,
        "D": problem.head_dim,
        "causal": problem.causal,
        "dtype": problem.dtype,
        "window": problem.window,
        "softcap": problem.softcap,
        "alibi": problem.alibi,
        "sinks": problem.sinks,
        "seqlens": ",".join(map(str, problem.seqlens or ())),
        "backward": problem.direction == "backward",
        "DV": problem.head_dim_v,
        "kvfp8": problem.kv_dtype is not None,
        "lse": problem.lse,
    }


def matching_preset(problem: Problem | None) -> Preset | None:
    """Return the first preset with this problem."""
    return next((p for p in presets() if p.problem == problem), None)


def preset_named(name: str) -> Preset | None:
    """Return the preset with this name; None if there is none."""
    return next((p for p in presets() if p.name == name), None)


def is_gpu(name: str) -> bool:
    """Return True if this is the name of a GPU of the table, or of a part of one."""
    try:
        return find_device(name).name == name
    except UnknownName:
        return False


def coordinates(
    variant: str, config: Mapping[str, int], problem: Problem, gpu: str
) -> dict[str, Any]:
    """Return an evaluation's widget values by key, as a link to it on the Tune page holds them.

    Names that this machine's ladder or device table lacks are left out.
    """
    values: dict[str, Any] = dict(problem_values(problem))
    if is_gpu(gpu):
        values["gpu"] = gpu
    if variant in {v.id for v in all_variants()}:
        values["variant"] = variant
        for tunable in find_variant(variant).tunables:
            if tunable.name in config and tunable.offers(config[tunable.name]):
                values[tunable_key(find_variant(variant), tunable)] = config[tunable.name]
    return values


def select(variant: str, config: Mapping[str, int], problem: Problem, gpu: str) -> None:
    """Select an evaluation's variant, config, problem and GPU in the sidebar. Call from a callback.

    Names that this machine's ladder or device table lacks leave the selection unchanged.
    """
    url_state.put(coordinates(variant, config, problem, gpu))
