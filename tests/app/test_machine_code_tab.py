"""The tab Machine code: what it shows of a reading in each of its states."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from app_driver import charts, components, texts, until
from words import says

from app.shared import known_times
from app.tune.machine_code import other, tab
from app.tune.machine_code.reading import Reading
from engine.attention.problem import Problem
from engine.machine_code.launch_report import (
    Count,
    FoldedLoop,
    Hint,
    HotLine,
    Listing,
    MachineCode,
    PassReport,
    Residency,
    Share,
)
from engine.pipeline.request import EvaluationRequest
from engine.pipeline.simulated_launches import simulated_timeline

HOSTILE = "<img src=x onerror=alert(1)>"
LISTING = Listing(
    address=(0, 16, 32),
    text=("LDS R4, [R2]", "FFMA R4, R4, R4, R4", "EXIT"),
    pipe=("shared", "fma", "branch"),
    schedule=("4 ......", "2 0.....", "5 ......"),
    line=(1, 2, 2),
    inlined=("", "tile.cuh:7", ""),
    live=(4, 6, 0),
    executed=(64, 128, 8),
    wavefronts=(128, 0, 0),
    ideal_wavefronts=(64, 0, 0),
    sectors=(0, 0, 0),
    ideal_sectors=(0, 0, 0),
    cycles=(10, 500, 5),
    reason=("Wait", "Short scoreboard", "Selected"),
    loops=(FoldedLoop(0, 1, 0, 16),),
)
REPORT = PassReport(
    entry="attention_forward",
    registers=40,
    counts=(Count("warp instructions", 200), Count("shared wavefronts", 128, 64)),
    lines=(HotLine("v01.cu", 2, 136, 0.68, 0.98, 128, 64, 0, 0),),
    listing=LISTING,
    notes=("Loaded data decides what is executed at v01.cu:2.",),
    hints=(
        Hint(2, f"Bank conflicts: {HOSTILE}"),
        Hint(2, "Loads are narrow.", "2 to 10 %", "narrow", 0.02, 0.10),
    ),
    cta_cycles=800.0,
    verdict="FMA is the limit: it is busy 91% of the time.",
    units=(Share("FMA", 0.91, True), Share("ALU", 0.2)),
    stalls=(Share("Short scoreboard", 0.7), Share("Selected", 0.3)),
    residencies=(Residency(1, 1.6, False), Residency(2, 1.0, True)),
)
CODE = MachineCode(
    "v01", "block_m=16", "L4", "sm_89", "v01.cu", f"// {HOSTILE}\nx += y;\n", (REPORT,)
)


@pytest.fixture
def readings(monkeypatch):
    """Return readings by variant, which a test fills in."""
    made: dict[str, Reading] = {}

    def read(request, _version):
        return made[request.variant]

    for module in (tab, other):
        monkeypatch.setattr(module, "read", read)
    return made


def listings(at):
    return {each["key"]: each for each in components(at) if "figure" not in each}


def test_units_stalls_lines_and_the_listing(open_app, readings):
    readings["v01"] = Reading(CODE)
    at = open_app(tab="Machine code", gpu="L4")
    shown = texts(at)
    assert REPORT.verdict in shown
    units, stalls = charts(at)["mc_units"], charts(at)["mc_stalls"]
    limit, other = units["data"][0]["text"]
    assert says(limit, "share_limit", "91%")
    assert other == "20%"
    assert stalls["data"][0]["y"] == [each.name for each in REPORT.stalls]
    assert "mc_live" in charts(at)
    assert says([b.proto.label for b in at.get("download_button")], "timeline_simulated")
    lines = next(d.value for d in at.dataframe if "warps' cycles" in d.value)
    assert lines["line"].tolist() == ["v01.cu:2"]
    assert lines["wavefronts"].tolist() == ["128 (2.0×)"]
    assert listings(at)["listing"]["listing"]["text"] == list(LISTING.text)
    assert HOSTILE not in shown  # it is escaped in Markdown
    assert says(shown, "hint_saves", "2–10%", "v03")  # as in the verdict line
    assert not at.exception


def test_machine_code_without_line_numbers_gives_a_note(open_app, readings):
    """Machine code of another compiler may have no line numbers."""
    readings["v01"] = Reading(replace(CODE, passes=(replace(REPORT, lines=()),)))
    at = open_app(tab="Machine code", gpu="L4")
    assert says(texts(at), "no_line_numbers")
    assert not at.exception


def test_two_kernels_are_compared_with_counts_first(open_app, readings):
    readings["v01"] = readings["v02"] = Reading(CODE)
    at = open_app(tab="Machine code", gpu="L4")
    at.selectbox(key="machine_code_other").select("v02  All threads").run()
    ratios = next(d.value for d in at.dataframe if "ratio" in d.value)
    assert set(ratios["ratio"]) == {"1.00×"}
    assert listings(at)["listing_aligned"]["pairs"] == [[n, n, True] for n in range(3)]
    assert not at.exception


def test_an_edited_kernel_can_be_compared_with_its_previous_version(open_app, readings):
    readings["v01"] = Reading(CODE)
    at = open_app(tab="Machine code", gpu="L4")
    changed = MachineCode("v01", "", "L4", "sm_89", "v01.cu", "x += z;\n", (REPORT,))
    readings["v01"] = Reading(changed)
    at.run()
    at.selectbox(key="machine_code_other").select("this kernel before its last edit").run()
    assert any(says(d.value, "before_the_edit") for d in at.dataframe)
    assert "listing_aligned" in listings(at)


@pytest.mark.parametrize(
    "given", [Reading(error="NVIDIA's disassembler nvdisasm is not installed."), Reading()]
)
def test_missing_machine_code_gives_a_reason(open_app, readings, given):
    readings["v01"] = given
    at = open_app(tab="Machine code", gpu="L4")
    assert given.error in texts(at)
    assert says(texts(at), "reading_machine_code") == (not given.error)
    assert not listings(at)
    assert not at.exception


@pytest.mark.slow
def test_a_kernel_is_read_by_a_job_and_times_of_other_residencies_follow(open_app):
    at = until(
        open_app(tab="Machine code", gpu="L4", S="64"),
        lambda page: "listing" in listings(page),
    )
    assert not at.error
    assert len(listings(at)["listing"]["listing"]["text"]) > 100
    request = EvaluationRequest("v01", Problem(1, 1, 64, 64), gpu="L4", execute=False)
    trace = json.loads(simulated_timeline(request, known_times.history(), 0))
    assert trace["otherData"]["origin"] == "simulated"
    assert {"stall", "fma"} <= {event.get("cat") for event in trace["traceEvents"]}
    tile = next(m.value for m in at.metric if m.label == "Latency")
    assert f"**{tile}** :gray[" in texts(at)
    assert says(texts(at), "predicted_interval", "by machine code")
    at = open_app(tab="Occupancy", gpu="L4", S="64")
    assert "residencies" in charts(at)
