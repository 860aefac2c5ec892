"""Parts of one evaluation as DataFrames, for its charts and tables. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from app.shared.palette import color_of
from engine.attention.evaluation import (
    BaselineTiming,
    Correctness,
    Latency,
    Occupancy,
    Resources,
    baseline_label,
)
from engine.base.table import Table
from engine.base.units import format_us
from engine.history.known_time import KnownTime, name_of
from engine.machine_code.launch_report import Residency
from engine.model.equations import Terms
from engine.model.occupancy import WARP_SIZE
from kernels.variant import Config

_WAVES_SHOWN = 12
_NAME_CHARS = 44
_RESOURCE = {"ctas": "CTA slots"}


def limits(occupancy: Occupancy) -> pd.DataFrame:
    """Return `resource`, `ctas_per_sm`, `limits`: the CTAs that each resource alone would allow."""
    rows = [
        (_RESOURCE.get(name, name), ctas, name in occupancy.limiters)
        for name, ctas in occupancy.limits.items()
    ]
    columns = ("resource", "ctas_per_sm", "limits")
    return Table("CTAs per SM by resource", columns, tuple(rows)).frame(dashes=False)


def waves(occupancy: Occupancy) -> tuple[pd.DataFrame, int] | None:
    """Return `wave`, `ctas`, `is_tail`, and the CTAs of a full wave; None if the number of SMs is
    unknown.

    Of many waves only the first and the last are listed, with an ellipsis between.
    """
    if occupancy.num_sms is None or occupancy.ctas_per_sm == 0:
        return None
    capacity = occupancy.ctas_per_sm * occupancy.num_sms
    full, rest = divmod(occupancy.useful_ctas, capacity)
    sizes = [(str(i + 1), capacity, False) for i in range(min(full, _WAVES_SHOWN))]
    if full > _WAVES_SHOWN:
        half = _WAVES_SHOWN // 2
        last = [(str(i + 1), capacity, False) for i in range(full - half, full)]
        sizes = [*sizes[:half], ("…", 0, False), *last]
    if rest:
        sizes.append((str(full + 1), rest, True))
    columns = ("wave", "ctas", "is_tail")
    return Table("Waves", columns, tuple(sizes)).frame(dashes=False), capacity


def threads(occupancy: Occupancy, resources: Resources) -> pd.DataFrame | None:
    """Return `what`, `threads`, `kind`: the launch and the GPU's capacity, None if unknown."""
    if occupancy.num_sms is None:
        return None
    capacity = occupancy.num_sms * occupancy.max_warps_per_sm * WARP_SIZE
    resident = min(occupancy.useful_ctas, occupancy.ctas_per_sm * occupancy.num_sms)
    rows = (
        ("launched", occupancy.ctas * resources.threads_per_cta, "launch"),
        ("resident at once", resident * resources.threads_per_cta, "launch"),
        ("GPU holds", capacity, "capacity"),
    )
    return Table("Threads", ("what", "threads", "kind"), rows).frame(dashes=False)


def residencies(items: Iterable[Residency], now_us: float) -> pd.DataFrame:
    """Return `name`, `us`, `label`, `is_now`.

    Args:
        now_us: the predicted time with today's number of CTAs per SM.
    """
    rows = [
        (f"{r.ctas_per_sm}", r.us(now_us), format_us(r.us(now_us)), r.is_now)
        for r in sorted(items, key=lambda r: r.ctas_per_sm)
    ]
    columns = ("name", "us", "label", "is_now")
    return Table("Time by CTAs per SM", columns, tuple(rows)).frame(dashes=False)


def latencies(
    variant: str,
    color: str,
    own: Sequence[Latency],
    baselines: Iterable[BaselineTiming],
    known: Sequence[KnownTime] = (),
) -> pd.DataFrame:
    """Return every known time for `app.evaluation.charts.latencies`.

    `known` are times of the same problem and GPU in sessions; only the last of each kernel, config
    and origin is shown.
    """
    words = {"device_warm": "", "device_cold": ", cold L2", "end_to_end": ", end to end"}
    rows = [(f"{variant}{words[x.kind]}", x, color) for x in own]
    grays = ("#7b8790", "#98a2a9", "#5f6b73", "#aeb6bb")
    timed = [b for b in baselines if b.latency is not None]
    rows += [
        (baseline_label(b.name), b.latency, grays[i % len(grays)])
        for i, b in enumerate(timed)
        if b.latency is not None
    ]
    last: dict[str, KnownTime] = {}
    names = [name_of(t) for t in known]
    configs: dict[str, list[Config]] = {name: [] for name in names}
    for name, t in zip(names, known, strict=True):
        configs[name].append(t.config)
    for name, t in sorted(zip(names, known, strict=True), key=lambda x: x[1].when, reverse=True):
        last.setdefault(f"{_known_name(name, t, configs[name])}, {t.latency.origin}", t)
    rows += [
        (name[:_NAME_CHARS], t.latency, _known_color(t, grays[i % len(grays)]))
        for i, (name, t) in enumerate(last.items())
    ]
    return latency_frame(rows)


def latency_frame(rows: Iterable[tuple[str, Latency, str]]) -> pd.DataFrame:
    """Return the columns of `app.evaluation.charts.latencies` of (name, time, colour)."""
    shown = [(name, x.median_us, x.low_us, x.high_us, x.origin, color) for name, x, color in rows]
    columns = ("name", "median_us", "low_us", "high_us", "origin", "color")
    return Table("Times", columns, tuple(shown)).frame(dashes=False)


def _known_name(name: str, time: KnownTime, configs: Sequence[Config]) -> str:
    """Return the kernel's name with its config, `SDPA flash`, or a reference's own name, with the
    values in which `configs`, all of that name, differ."""
    shown = sorted(time.config)
    if name != time.name:
        shown = [k for k in shown if any(c.get(k) != time.config[k] for c in configs)]
    return " ".join([name, *(f"{k}={time.config[k]}" for k in shown)])


def _known_color(time: KnownTime, gray: str) -> str:
    if time.is_sdpa:
        return gray
    return color_of(name_of(time))


def terms(prediction: Terms) -> pd.DataFrame:
    """Return `term`, `us`, `limits`, `meaning` of the prediction of one launch."""
    work = f"the busiest SM works through {int(prediction.load_per_sm[0]):,} CTAs"
    compute = "one CTA, CTAs per SM, math peak, exp peak"
    rows = [
        ("launch floor", prediction.floor_us, "launch floor", "time to start and drain the launch"),
        ("SMs", prediction.compute_us, compute, work),
        ("L2", prediction.l2_us, "L2", "bytes that the SMs read from L2"),
        ("DRAM", prediction.dram_us, "DRAM", "bytes read from and written to DRAM"),
    ]
    if prediction.fuse_us[0] > 0:
        fusing = "merging the partial results"
        rows.append(("fusion pass", prediction.fuse_us, "fusion pass", fusing))
    shown = [
        (term, float(us[0]), prediction.limited_by() in names.split(", "), meaning)
        for term, us, names, meaning in rows
    ]
    columns = ("term", "us", "limits", "meaning")
    return Table("Terms of the prediction", columns, tuple(shown)).frame(dashes=False)


def error_numbers(c: Correctness) -> pd.DataFrame:
    """Return the error figures, each with its limit."""
    yes = {True: "yes", False: "no"}
    rule = f"2 × SDPA's {c.baseline_err:.3g} + half a rounding step"
    old = "within" if c.within_fixed_bound else "over"
    broken = c.nonfinite_count + c.unwritten_count
    of = f"over finite elements; {broken:,} are NaN or infinite" if broken else ""
    rows = [
        ("largest |error|", f"{c.max_abs_err:.3g}", f"≤ {c.tolerance:.3g}", of or rule),
        ("", "", f"≤ {c.fixed_bound:g}", f"the study's fixed bound, informative only: {old}"),
        *(
            (f"largest |error| of {x.name}", f"{x.max_abs_err:.3g}", f"≤ {x.tolerance:.3g}", "")
            for x in c.outputs
        ),
        *(
            [
                (
                    "largest change by FP8 alone",
                    f"{c.fp8_err:.3g}",
                    "",
                    "how much FP8 K and V change O; not an error of the kernel",
                )
            ]
            if c.fp8_err is not None
            else []
        ),
        ("mean |error|", f"{c.mean_abs_err:.3g}", "", ""),
        ("RMS error", f"{c.rms_err:.3g}", "", ""),
        ("cosine similarity", f"{c.cosine:.7f}", "", ""),
        ("elements over tolerance", f"{c.bad_count:,}", "0", ""),
        ("NaN or infinity", f"{c.nonfinite_count:,}", "0", ""),
        (
            "never written",
            f"{c.unwritten_count:,}",
            "0",
            "the output buffer is filled with a marker first",
        ),
        ("inputs unchanged", yes[c.inputs_unchanged], "yes", ""),
        ("second run gives the same bits", yes[c.repeatable], "yes", ""),
        ("guard zones intact", yes[c.guards_intact], "yes", ""),
    ]
    columns = ("figure", "value", "allowed", "note")
    return Table("Correctness", columns, tuple(rows)).frame()
