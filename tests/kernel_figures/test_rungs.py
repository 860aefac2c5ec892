"""Figures of the rungs: known ones, computed ones, and changes against the parent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.attention.evaluation import Latency
from engine.attention.problem import Problem
from engine.base.errors import AttuneError
from engine.base.schema import encode
from engine.base.units import format_us
from engine.choose.auto.candidates import unused_instructions
from engine.cli import main
from engine.devices import find_device
from engine.history import History
from engine.history.known_time import not_comparable
from engine.kernel_figures import Rung, known_rung, ladder_table, work_out_rung
from engine.kernel_figures.changes import (
    STUDY_PROBLEM,
    Diff,
    counts_diff,
    forecasts_table,
    gain,
    header_of,
    machine_code_diff,
    orders,
    rung_before,
    source_diff,
)
from engine.kernel_figures.rung import reasons, request_of, rung_dict, without_empty
from engine.model.kernel import Kernel
from kernels.ladder import LADDER
from kernels.variant import Variant
from tests.machine_code.gate import recorded
from tests.words import says

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = Problem(1, 8, 512, 64)
v08, v09, v12 = (LADDER.by_id(name) for name in ("v08", "v09", "v12"))


@pytest.fixture(scope="module")
def pair() -> tuple[Rung, Rung]:
    """Return the figures of v08 and v09 on an L4."""
    rungs = []
    for variant in (v08, v09):
        request = request_of(variant, PROBLEM, "L4")
        work_out_rung(request)
        rungs.append(known_rung(variant, request))
    return rungs[0], rungs[1]


@pytest.mark.usefixtures("nothing_ships")
def test_reading_a_rung_computes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    rung = known_rung(v08, request_of(v08, PROBLEM, "L4"))
    assert not rung.is_complete
    assert (rung.counts, rung.latency, rung.why_not) == (None, None, "")


def test_a_computed_rung_is_known(pair: tuple[Rung, Rung]) -> None:
    rung, _ = pair
    assert rung.is_complete
    assert rung.is_simulated
    assert rung.counts is not None
    assert rung.counts.conflicts == pytest.approx(1)
    # The same kernel as counted by the gate, with 64 query rows a CTA.
    gate = recorded()["v08 sm_89"].instructions_per_64_keys
    assert rung.counts.instructions == pytest.approx(gate, rel=0.02)
    assert rung.counts.by_pipe["tensor"] == 4 * 64  # 64 HMMA for each of the 4 warps
    table = without_empty(ladder_table(pair, "two"))
    assert [row[0] for row in table.rows] == ["v08", "v09"]
    assert "conflicts" in table.columns
    assert "known" not in table.columns  # no measured time


def test_a_rung_compared_with_the_previous_one(pair: tuple[Rung, Rung]) -> None:
    before, after = pair
    assert gain(before, after).startswith("Against v08: ")
    assert "simulated" in gain(before, after)
    table = counts_diff(before, after)
    figures = {row[0]: row[1:] for row in table.rows}
    assert figures["shared memory of a CTA"] == ("18 KiB", "16 KiB", "-11%")
    assert not says(figures, "shared_memory_wavefronts")  # neither has bank conflicts
    assert machine_code_diff(before, after).added > 0
    same = machine_code_diff(before, before)
    assert (same.added, same.removed) == (0, 0)
    unknown = replace(after, is_simulated=False)
    assert says(gain(before, unknown), "not_both_are", "Against v08")


def test_no_ratio_of_a_calibrated_and_a_simulated_time_is_written() -> None:
    def rung(variant: Variant, us: float, reason: str) -> Rung:
        made = known_rung(variant, request_of(variant, PROBLEM, "L4"))
        latency = Latency("predicted", us, us / 2, us * 2, f"By machine code. {reason}")
        return replace(made, latency=latency, is_simulated=True, why_not="")

    simulated, calibrated = rung(v08, 100.0, ""), rung(v09, 50.0, "Calibrated on 1 known time.")
    why = not_comparable(simulated.latency.basis, calibrated.latency.basis)  # type: ignore[union-attr]
    assert gain(simulated, calibrated).endswith(f"{why}.")
    (row,) = (r for r in counts_diff(simulated, calibrated).rows if r[0] == "predicted time")
    assert row[1:] == ("100 µs", "50 µs", why)
    assert orders([simulated, calibrated])["v09"] == ""
    shown = ladder_table([simulated, calibrated], "two").frame()["predicted"]
    assert list(shown) == ["100 µs", "50 µs, calibrated"]
    told = rung_dict(calibrated)
    assert (told["simulated"], told["known_latency"]) == ("50 µs", None)
    assert told["latency"] == encode(calibrated.latency) | {"method": "machine code"}
    both = [rung(v08, 100.0, ""), rung(v09, 50.0, "")]
    assert gain(*both).endswith("2.00× as fast.")
    assert orders(both)["v09"] == "✓ faster than v08"


def test_unsupported_rungs_give_a_reason() -> None:
    rung = known_rung(v12, request_of(v12, replace(PROBLEM, seqlen=4096), "L4"))
    assert rung.is_complete
    assert says(rung.why_not, "one_shot_keys", "4,096")
    in_bf16 = request_of(v08, replace(PROBLEM, dtype="bfloat16"), "T4")
    assert says(known_rung(v08, in_bf16).why_not, "those_of_have", "T4", "sm_75", "BF16")
    with pytest.raises(AttuneError):
        work_out_rung(in_bf16)


def test_reasons_that_differ_only_in_the_rung_are_merged() -> None:
    rungs = [known_rung(v, request_of(v, PROBLEM, "L4")) for v in LADDER if v.arch_specific]
    (sentence,) = reasons({rung.variant.id: rung.why_not for rung in rungs})
    first, *others = rungs
    assert says(sentence, "needs_compute_capability", first.variant.id, "L4")
    assert says(sentence, "same_holds_for", ", ".join(rung.variant.id for rung in others))


def test_continued_lines_of_a_header_are_joined(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text("// Mine: a title.\n// Lost: 4 rows\n//   by 2 keys.\n// Source: none.\n\n")
    mine = replace(LADDER.by_id("v03"), source=source)
    said = (("Mine", "a title."), ("Lost", "4 rows by 2 keys."), ("Source", "none."))
    assert header_of(mine) == said


def test_a_config_that_supports_the_problem_is_found() -> None:
    longer = replace(PROBLEM, seqlen=256)
    assert v12.unsupported(longer, v12.default_config()) is not None
    request = request_of(v12, longer, "L4")
    found = dict(request.config)
    assert known_rung(v12, request).describe_changed == "keys_per_warp=64"
    assert (
        known_rung(v12, request_of(v12, PROBLEM, "L4", v12.default_config())).describe_changed
        == "defaults"
    )
    assert v12.unsupported(longer, found) is None
    # A CTA of sm_75 has 64 KiB of shared memory: the defaults hold 97 KiB at D = 128.
    v14, wide = LADDER.by_id("v14"), Problem(1, 8, 1, 128, seqlen_kv=512)
    assert Kernel.of(v14, "L4").fits(wide)
    assert not Kernel.of(v14, "T4").fits(wide)
    assert Kernel.of(v14, "T4", request_of(v14, wide, "T4").config).fits(wide)


def test_if_no_config_fits_the_reason_holds_for_all() -> None:
    """If no config fits, the reason is one that holds for all, not that of one config."""
    longest = replace(PROBLEM, seqlen=512)
    default, t4 = v12.default_config(), Kernel.of(v12, "T4")
    of_the_config = v12.unsupported(longest, default)
    said = "the smallest needs 74,752 bytes of shared memory per CTA, and T4 has 65,536"
    assert said in str(t4.unsupported(longest))
    assert said in known_rung(v12, request_of(v12, longest, "T4")).why_not
    # If another config fits, or none on any GPU, the reason is the constraint.
    assert Kernel.of(v12, "L4").unsupported(longest) == of_the_config
    narrow = replace(longest, head_dim=32)
    assert t4.unsupported(narrow) == of_the_config
    too_long = replace(PROBLEM, seqlen=4096)
    none = str(t4.unsupported(too_long))
    assert says(none, "no_config_takes", "v12")
    assert none.endswith(str(v12.unsupported(too_long, default)))
    odd = replace(PROBLEM, head_dim=48)
    assert t4.unsupported(odd) == v12.unsupported(odd, default)
    # The compute capability comes first, as no config changes it.
    v15 = Kernel.of("v15", "T4", {"no_such": 1})
    assert says(str(v15.unsupported(longest)), "needs_compute_capability", "9", "0")


def test_every_rung_has_a_header_and_one_before_it() -> None:
    first, *others = LADDER
    assert rung_before(first) is None
    for variant in others:
        before = rung_before(variant)
        assert before is not None
        assert before.id < variant.id
        labels = [label for label, _ in header_of(variant)]
        assert labels[:3] == ["", "Idea", "Changed"]


def test_the_source_diff_is_of_code_alone() -> None:
    diff = source_diff(v08, v09)
    assert diff.added > 0
    assert "swizzle" in diff.text
    assert "Weakness:" not in diff.text
    assert "min_compute_capability" not in diff.text
    assert says(diff.summary(), "lines_changed", f"{diff.added:,}", f"{diff.removed:,}")
    assert says(Diff("", 1, 0).summary(), "lines_changed", "1 line", "0")


def test_an_unsupported_default_config_is_changed_as_little_as_possible() -> None:
    v20 = LADDER.by_id("v20")  # made for D = 64
    request = request_of(v20, Problem(1, 32, 2048, 128), "H200")
    assert request.config == v20.default_config() | {"block_n": 64}


def test_problems_without_a_rung_are_reported() -> None:
    assert "tcgen05" in unused_instructions(find_device("B200"))
    assert unused_instructions(find_device("L4")) == ""


def test_readme_figures_are_written_between_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- ladder:begin -->\nformer text\n<!-- ladder:end -->\nb\n")
    assert main(["variants", "--markdown", "--into", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("a\n<!-- ladder:begin -->\n| # | variant |")
    assert text.endswith("|\n<!-- ladder:end -->\nb\n")
    assert "former text" not in text
    readme.write_text("no marks")
    assert main(["variants", "--markdown", "--into", str(readme)]) == 2
    assert main(["variants", "--diff", "v09"]) == 2


@pytest.mark.exhaustive
def test_readme_shows_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).resolve().parents[2] / "kernels" / "README.md"
    begin, end = "<!-- ladder figures:begin -->", "<!-- ladder figures:end -->"
    shown = readme.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip()
    assert main(["variants", "--gpu", "L4", "-H", "8", "-S", "1024", "--markdown"]) == 0
    assert shown == capsys.readouterr().out.strip()


def test_the_prediction_in_the_readme_is_the_present_one() -> None:
    """The row of v01 on the L4 study's problem, which the other rows of its table are about."""
    time = History(shipped=True).time_of(Kernel.of("v01", "L4"), STUDY_PROBLEM)
    assert time is not None
    low, high = format_us(time.low_us).removesuffix(" µs"), format_us(time.high_us)
    shown = f"| {format_us(time.us)} (90 % interval {low} to {high}) | predicted |"
    assert shown in (ROOT / "README.md").read_text(encoding="utf-8")


def test_forecasts_are_shown_beside_simulated_gains() -> None:
    times = {"v01": 120.0, "v02": 60.0, "v03": 10.0, "v05": 30.0, "v11": 5.0, "v13": 6.0}

    class Known(History):
        def estimate(self, kernel: Kernel, problem: Problem) -> SimpleNamespace:
            assert problem == STUDY_PROBLEM
            if kernel.variant.id not in times:  # v04 has no simulated time
                return SimpleNamespace(latency=None)
            time = SimpleNamespace(median_us=times[kernel.variant.id])
            return SimpleNamespace(latency=time, by_machine_code=True)

    table = forecasts_table(Known())
    told = {row[0]: row[3] for row in table.rows}
    expected, slower = told.pop("All threads compute"), told.pop("Persistent CTAs")
    assert says(expected, "as_expected")
    assert says(slower, "slower_instead")
    assert told == {
        "Small tiles": None,
        "KV split": "less",
    }
