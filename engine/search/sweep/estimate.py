"""How long a sweep will take: by a default at first, then by its own finished evaluations."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from engine.base.errors import AttuneError
from engine.base.files import cache_root, read_entry, write_entry
from engine.base.table import Table
from engine.base.units import format_us
from engine.devices import find_device
from engine.model.roofline import Roofs, launch_work, roofline_points, roofs_of
from engine.names import find_variant
from engine.pipeline.request import Effort, EvaluationRequest
from engine.plan import make_plan
from engine.search.ranking import SweepRow
from engine.search.space import SweepPoint

if TYPE_CHECKING:
    import pandas as pd


# Seconds, from runs on 2 cores of a desktop CPU. The first finished points correct them.
_COMPILE_S = 0.2  # NVRTC takes 0.05 to 0.3 s a kernel
_HOST_COMPILE_S = 0.6  # the same kernel for the CPU
_CHECK_S = 0.1  # reference, SDPA and the comparison of a small problem
_CPU_FLOPS_PER_S = 1.1e9  # the CPU backend's fast build: v01 at S=512, D=64 in 60 ms
_CHECK_BUILD_SLOWDOWN = 20.0
_REFERENCE_FLOPS_PER_S = 2e10
_RUNS = 2  # every kernel is executed twice and compared with itself
# Warm-up and rounds: of the kernel alone, or of warm, cold and end to end beside the baselines.
_MEASURE_S: Mapping[Effort, float] = {"quick": 1.0, "full": 12.0}

_LEARNED_FROM = 3  # evaluations of a sweep, at least
_RECENT = 100  # evaluations that say how fast this machine is


def prior_s(request: EvaluationRequest, on_gpu: bool) -> float:
    """Seconds one evaluation may take, when nothing was measured yet."""
    seconds = _COMPILE_S
    if not request.execute:
        return seconds
    flops = request.problem.flops
    seconds += _CHECK_S + flops / _REFERENCE_FLOPS_PER_S
    if on_gpu:
        return seconds + _MEASURE_S[request.effort]
    slowdown = _CHECK_BUILD_SLOWDOWN if request.check else 1.0
    return seconds + _HOST_COMPILE_S + _RUNS * slowdown * flops / _CPU_FLOPS_PER_S


class Estimator:
    """The remaining time of a sweep; each finished point improves the estimate.

    The prior knows which points are dear beside which; how fast this machine is comes from the
    median of actual over prior, before the first point that of earlier sweeps of the kind.
    """

    def __init__(self, points: Iterable[SweepPoint], on_gpu: bool) -> None:
        points = [p for p in points if p.why_not is None]
        self._priors = {p.id: prior_s(p.request, on_gpu) for p in points}
        self._left_s = sum(self._priors.values())
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._kind = _kind(points[0].request, on_gpu) if points else ""
        self._before = learned().get(self._kind, 1.0)  # of earlier sweeps

    @property
    def is_measured(self) -> bool:
        """Whether any evaluation has been timed."""
        return bool(self._ratios)

    @property
    def points_left(self) -> int:
        return len(self._priors)

    def finish(self, point: SweepPoint, elapsed_s: float) -> None:
        """One point is done, and this is how long it took."""
        prior = self._priors.pop(point.id, 0.0)
        self._left_s -= prior
        if prior > 0 and elapsed_s > 0:
            self._ratios.append(elapsed_s / prior)

    def left_s(self) -> float:
        """Seconds for all points that are not finished, one after another."""
        return self._left_s * (median(self._ratios) if self._ratios else self._before)

    def learn(self) -> None:
        """Keep how fast this machine was, for the estimate before the next sweep."""
        if len(self._ratios) >= _LEARNED_FROM:
            kept = {**learned(), self._kind: median(self._ratios)}
            write_entry(_learned_path(), json.dumps(kept).encode())


def learned() -> dict[str, float]:
    """What earlier sweeps took over what the prior says, by kind of evaluation."""
    payload = read_entry(_learned_path())
    return {} if payload is None else json.loads(payload)


def _learned_path() -> Path:
    return cache_root() / "sweeps" / "speed.json"


def _kind(request: EvaluationRequest, on_gpu: bool) -> str:
    where = "gpu" if on_gpu else request.backend
    return f"{where} {request.effort}" if request.execute else "not executed"


def runs_on_gpu(request: EvaluationRequest) -> bool:
    """Whether the evaluation would be measured on this machine's GPU."""
    if request.backend in ("cpu", "machine-code") or not request.execute:
        return False
    from engine.backends.cuda import why_not_cuda
    from engine.devices import find_device

    return why_not_cuda(find_device(request.gpu) if request.gpu else None) is None


# All timed points of a sweep on rooflines: a row of a DataFrame for each point and level.


COLUMNS = (
    *("point", "device", "variant", "label", "problem", "level", "intensity", "tflops"),
    *("roof_tflops", "share", "time_us", "origin", "flops", "bytes", "kv_loads"),
    *("computing_share", "by_order"),
)


def sweep_roofs(rows: Iterable[SweepRow]) -> tuple[Roofs, ...]:
    """The roofs over a sweep's points: one for each GPU, math unit and number format."""
    roofs: dict[Roofs, None] = {}
    for device, name, dtype in dict.fromkeys(
        (row.device, row.variant, row.problem.dtype) for row in rows
    ):
        try:
            roofs[roofs_of(find_device(device), find_variant(name), dtype)] = None
        except AttuneError:  # a kernel that is not here, or a GPU without figures
            continue
    return tuple(roofs)


def roofline_frame(rows: Iterable[SweepRow]) -> pd.DataFrame:
    """Columns `COLUMNS`: time in µs, intensity in FLOP a byte, bytes of the level, shares 0..1.

    Points without a time, of a kernel or GPU that is not known here, or that no SM holds, have no
    line; a level that gives no bytes has none either.
    """
    import pandas as pd

    lines = [line for row in rows for line in roofline_lines(row)]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def roofline_lines(row: SweepRow) -> list[dict[str, Any]]:
    """One point's lines of `roofline_frame`."""
    resident = (row.result["occupancy"] or {}).get("ctas_per_sm")
    if row.interval is None or row.origin is None or not resident:
        return []
    try:
        variant, device = find_variant(row.variant), find_device(row.device)
        plan = make_plan(variant, row.problem, row.config)
        roofs = roofs_of(device, variant, row.problem.dtype)
        work = launch_work(variant, plan, device, resident)
    except AttuneError:
        return []
    return [
        {
            "point": row.point,
            "device": row.device,
            "variant": row.variant,
            "label": row.label(),
            "problem": row.problem.label(),
            "level": p.level,
            "intensity": p.intensity,
            "tflops": p.tflops,
            "roof_tflops": p.roof_tflops,
            "share": p.share,
            "time_us": p.time_us,
            "origin": p.origin,
            "flops": work.flops,
            "bytes": work.bytes_from(p.level),
            "kv_loads": work.kv_l2_loads if p.level == "L2" else work.kv_dram_loads,
            "computing_share": work.computing_share,
            "by_order": work.by_order,
        }
        for p in roofline_points(roofs, work, [(row.interval.median, row.origin)])
    ]


def roofline_table(frame: pd.DataFrame) -> Table:
    """Lines of `roofline_frame` as people read them."""
    return Table.of(
        "Points against the roofs",
        (
            {
                "kernel": r["label"],
                "problem": r["problem"],
                "GPU": r["device"],
                "level": r["level"],
                "FLOP/B": f"{r['intensity']:,.3g}",
                "time": f"{format_us(r['time_us'])} {r['origin']}",
                "TFLOP/s": f"{r['tflops']:.3g}",
                "of the roof": f"{r['share']:.1%}",
                "K/V loaded": f"{r['kv_loads']:,.3g} times",
                "computing threads": f"{r['computing_share']:.0%}",
                "DRAM's bytes": ""
                if r["level"] == "L2"
                else "by the order of CTAs"
                if r["by_order"]
                else "every byte once",
            }
            for r in frame.to_dict("records")
        ),
        "" if len(frame) else "No point has a time on a GPU whose figures are known.",
    )
