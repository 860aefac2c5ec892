"""The simulated CTAs of one SM as a trace for Perfetto or chrome://tracing.

The format is Chrome's trace events. A process is a CTA and its threads are warps, with a slice for
each instruction and, before it, one for the stall. The tensor cores and the copies in flight are
processes of their own. Times are µs at the clock of the simulation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.base import files
from engine.base.errors import InvalidProblem
from engine.devices.spec import DeviceSpec
from engine.machine_code.analysis import Analysis
from engine.machine_code.timing.constants import StallReason
from engine.machine_code.timing.native import (
    COPY,
    ISSUED,
    Regime,
    allocated_smem,
    follow_sm,
    gpu_rates,
    sm_kernel,
)
from engine.machine_code.timing.simulate import SimulatedLaunch

_MAX_EVENTS = 60_000  # some 15 MB of JSON
_TENSOR_CORES, _COPIES = 1_000_000, 1_000_001  # process numbers, above those of CTAs
_NEXT_LAUNCH = 10_000_000  # offset of the second launch's process numbers, above all of the first
_UNIT = "displayTimeUnit"


def timeline(analysis: Analysis, device: DeviceSpec, simulated: SimulatedLaunch) -> dict[str, Any]:
    """The first events of an SM that executes two waves of the launch's longest CTA."""
    gpu = gpu_rates(device, analysis.program.arch)
    taken = simulated.resident_ctas * allocated_smem(device, analysis.smem_bytes)
    regime: Regime = "streaming" if simulated.dram_us > 0 else "shared"
    kernel = sm_kernel(analysis.program, gpu, regime, taken, fetches_code=False)
    ctas = min(2 * simulated.resident_ctas, simulated.ctas_per_sm)
    events = follow_sm(
        kernel, [simulated.longest], [0] * ctas, simulated.resident_ctas, _MAX_EVENTS
    )
    instructions = analysis.program.instructions
    rows: list[dict[str, Any]] = []

    def slice_of(name: str, process: int, thread: int, begin: float, end: float) -> dict[str, Any]:
        us = begin / gpu.cycles_per_us
        took = (end - begin) / gpu.cycles_per_us
        return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": us, "dur": took}

    free: list[float] = []  # time from which each row is free; overlapping copies need several
    for event in events:
        begin, end = float(event["begin"]), float(event["end"])
        cta, warp = int(event["cta"]), int(event["warp"])
        instruction = instructions[int(event["op"])]
        told = {"instruction": str(instruction), "address": f"0x{instruction.address:x}"}
        if instruction.source:
            told["line"] = f"{instruction.source[-1].file}:{instruction.source[-1].line}"
        if event["kind"] == ISSUED:
            if end > begin:
                waits = StallReason(int(event["reason"])).label
                rows.append(slice_of(waits, cta, warp, begin, end) | {"cat": "stall", "args": told})
            made = slice_of(instruction.mnemonic, cta, warp, end, end + 1)
            rows.append(made | {"cat": instruction.pipe.value, "args": told})
        elif event["kind"] == COPY:
            row = next((n for n, at in enumerate(free) if at <= begin), len(free))
            free[row:] = [end, *free[row + 1 :]]
            name = f"{instruction.mnemonic} of CTA {cta}"
            rows.append(slice_of(name, _COPIES, row, begin, end) | {"cat": "copy", "args": told})
        else:
            core = int(event["partition"])
            made = slice_of(f"CTA {cta}, warp {warp}", _TENSOR_CORES, core, begin, end)
            rows.append(made | {"cat": "tensor", "args": told})
    return {
        "traceEvents": [*_names(events), *rows],
        _UNIT: "ns",
        "otherData": {
            "kernel": analysis.program.entry,
            "gpu": device.name,
            "clock": device.clock_label,
            "origin": "simulated",
            "complete": len(events) < _MAX_EVENTS,
        },
    }


def beside(first: dict[str, Any], second: dict[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Combine the traces of two launches, both starting at time 0.

    Args:
        names: names of the launches, put before the name of every process.
    """
    rows: list[dict[str, Any]] = []
    for number, (trace, name) in enumerate(zip((first, second), names, strict=True)):
        for event in trace["traceEvents"]:
            moved = event | {"pid": event["pid"] + number * _NEXT_LAUNCH}
            if event["name"] == "process_name":
                moved["args"] = {"name": f"{name}: {event['args']['name']}"}
                order = {"sort_index": moved["pid"]}
                rows.append(moved | {"name": "process_sort_index", "args": order})
            rows.append(moved)
    told = [trace["otherData"] for trace in (first, second)]
    both = [{"name": name, **each} for name, each in zip(names, told, strict=True)]
    return {
        "traceEvents": rows,
        _UNIT: first[_UNIT],
        "otherData": {"origin": "simulated", "launches": both},
    }


def write_timeline(path: Path, trace: dict[str, Any]) -> None:
    """Raises InvalidProblem: the file cannot be written."""
    if not path.parent.is_dir():
        raise InvalidProblem(f"There is no folder {path.parent} for the timeline: create it first.")
    with files.explain_os_error(f"{path} cannot be written", "name another file", named=True):
        path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")


def _names(events: NDArray[np.void]) -> list[dict[str, Any]]:
    """Events that name the processes and threads."""

    def named(kind: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}

    rows = [
        named("process_name", _TENSOR_CORES, "tensor cores"),
        named("process_name", _COPIES, "copies in flight"),
        *(named("thread_name", _TENSOR_CORES, f"partition {n}", n) for n in range(4)),
    ]
    for cta, warp in sorted({(int(e["cta"]), int(e["warp"])) for e in events}):
        if warp == 0:
            rows.append(named("process_name", cta, f"CTA {cta}"))
        rows.append(named("thread_name", cta, f"warp {warp}", warp))
    return rows
