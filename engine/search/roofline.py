"""All timed points of a sweep on rooflines: a row of a DataFrame for each point and level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine.devices import find_device
from engine.errors import AttuneError
from engine.model.roofline import Roofs, launch_work, roofline_points, roofs_of
from engine.names import find_variant
from engine.plan import make_plan
from engine.search.rows import SweepRow
from engine.table import Table
from engine.units import format_us

if TYPE_CHECKING:
    import pandas as pd

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
