"""The verdict on a launch: its codes for each outcome of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from sessions_data import evaluation_maker
from verdicts import RIGHT
from words import says

from engine.attention.evaluation import CALIBRATED, Execution, Finding, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.choose.auto import Choice
from engine.correctness.findings import FindingCode, Place
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.devices import find_device
from engine.machine_code.advice import NEXT_WORDS
from engine.machine_code.advice.gain import AdviceKind
from engine.machine_code.launch_report import Hint, PassReport, Share
from engine.machine_code.timing.constants import StallReason
from engine.model.kernel import Kernel
from engine.pipeline.verdict import REMEDIES, Limit, next_step, verdict_of
from kernels.description import read_own

PROBLEM = Problem(2, 8, 1024, 64)
V08 = Kernel.of("v08", find_device("L4"), {})
V11 = Kernel.of("v11", find_device("L4"), {})
FAST = Execution("cpu", "fast", "in_order", 0, 1.0)
PASSED = evaluation_maker(variant="v08", problem=PROBLEM, correctness=RIGHT, execution=FAST)
PREDICTED = Latency("predicted", 50.0, 40.0, 60.0, "By machine code: a CTA's time is simulated.")
ROOFLINE = replace(PREDICTED, reason="By roofline: a CTA's time is assumed.")
REPORT = PassReport(
    entry="k",
    registers=128,
    counts=(),
    lines=(),
    listing=None,  # type: ignore[arg-type]
    notes=(),
    hints=(
        Hint(160, "May be much.", "0 to 34 %", "tensor_idle", 0.0, 0.34),
        Hint(145, "Is surely something.", "2 to 10 %", "copy_ahead", 0.02, 0.10),
        Hint(1, "Nobody knows.", kind="spills"),
    ),
    units=(Share("Tensor", 0.5),),
    stalls=(
        Share(StallReason.SELECTED.label, 0.4),
        Share(StallReason.LONG_SCOREBOARD.label, 0.39),
    ),
)


def codes(verdict) -> list[str]:
    return [part.code for part in verdict.parts]


def test_a_correct_kernel_gets_its_roofline_share_and_next_step() -> None:
    faster = Choice(V11, "It is faster.", time=replace(_time(40.0)))
    found = verdict_of(
        PASSED, V08, PROBLEM, latency=PREDICTED, ctas_per_sm=2, report=REPORT, choice=faster
    )
    assert (found.result, found.races_unchecked) == ("passed", True)
    assert codes(found) == ["result", "time", "next", "auto", "check"]
    assert found.roof is not None
    assert found.roof.roof == "tensor"
    assert found.roof.share == pytest.approx(PROBLEM.flops / 50.0 / 1e6 / 121, rel=0.01)
    assert found.limit == Limit("stall", "Long scoreboard", 0.39)
    assert found.next is not None  # the most certain gain, not the largest possible one
    assert (found.next.kind, found.next.place) == ("copy_ahead", Place("v08_mma_sync.cu", 145))
    assert found.auto is not None
    assert (found.auto.variant, found.auto.us) == ("v11", 40.0)
    assert found.encoded()["sentence"] == found.sentence
    checked = replace(PASSED, execution=replace(FAST, build="check"))
    assert not verdict_of(checked, V08, PROBLEM).races_unchecked


@pytest.mark.parametrize(
    ("choice", "us"),
    [
        (Choice(V08, "This one."), None),
        (Choice(V11, "Slower.", time=PREDICTED), 60.0),
    ],
)
def test_auto_is_named_where_it_is_another_kernel_and_faster(choice: Choice, us: float) -> None:
    if us:
        choice = replace(choice, time=_time(us))
    assert verdict_of(None, V08, PROBLEM, latency=PREDICTED, choice=choice).auto is None


def test_predictions_and_bounds_are_labelled_before_a_run() -> None:
    found = verdict_of(None, V08, PROBLEM, latency=PREDICTED)
    assert (found.result, codes(found)) == ("not_run", ["result", "time"])
    assert found.time is not None
    assert not found.time.is_bound
    bound = verdict_of(None, V08, PROBLEM, latency=ROOFLINE, bound_us=13.0)
    assert bound.time is not None
    assert (bound.time.us, bound.time.is_bound, bound.roof) == (13.0, True, None)
    assert says(bound.sentence, "at_least_time", "13 µs")
    calibrated = replace(ROOFLINE, reason=f"{ROOFLINE.reason} Calibrated on 3 known times.")
    assert not calibrated.is_bound


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PASSED])
def test_a_failed_run_names_place_and_remedy(status: Status) -> None:
    failed = replace(
        PASSED,
        status=status,
        reason="v08_mma_sync.cu:93: shared memory race in kernel k: twice.",
        correctness=None,
        latency=None,
    )
    found = verdict_of(failed, V08, PROBLEM, latency=PREDICTED, report=REPORT)
    assert found.result == status.lower()
    assert found.place == Place("v08_mma_sync.cu", 93)
    assert found.remedy
    assert found.time is found.next is None  # no time is given for a wrong kernel
    assert set(REMEDIES) == set(Status) - {Status.PASSED}
    assert next_step(status, failed.reason).endswith(".")


def test_the_check_build_is_suggested_only_if_it_has_not_run() -> None:
    for build in ("fast", "check"):
        step = next_step(Status.INCORRECT, "5 are off.", replace(FAST, build=build))
        assert ("--check" in step) == (build == "fast")


@pytest.mark.parametrize("backend", ["cuda", "cpu", "machine-code", None])
def test_a_smaller_tile_is_advised_where_a_gpu_refused_the_launch(backend: str | None) -> None:
    run = replace(FAST, backend=backend) if backend else None
    failed = replace(
        PASSED,
        status=Status.LAUNCH_ERROR,
        reason="An mbarrier is not initialised.",
        correctness=None,
        latency=None,
        execution=run,
    )
    remedy = verdict_of(failed, V08, PROBLEM).remedy
    assert says(remedy, "launch_smaller_tile") is (backend == "cuda")
    assert next_step(failed.status, failed.reason, run)[1:] == f"{remedy[1:]}."


def test_tf32_products_are_named_in_the_verdict_and_use_their_roof() -> None:
    fp32 = replace(PROBLEM, dtype="float32")
    variant = replace(V08.variant, tf32=True, dtypes=("float32",))
    kernel = replace(V08, variant=variant)
    right = replace(PASSED, problem=fp32)
    found = verdict_of(right, kernel, fp32, latency=PREDICTED, ctas_per_sm=2)
    assert says(found.sentence, "correct_in_tf32")
    assert found.roof is not None
    assert found.roof.roof == "TF32 tensor"
    exact = verdict_of(right, replace(kernel, variant=V08.variant), fp32)
    assert not says(exact.sentence, "correct_in_tf32")


def test_order_dependent_outputs_are_to_be_checked_for_a_race() -> None:
    finding = Finding("order_of_threads", "5 elements differ.", 1.0)
    wrong = replace(RIGHT, passed=False, bad_count=5, findings=(finding,))
    run = replace(
        PASSED, status=Status.INCORRECT, reason="5 are off.", correctness=wrong, latency=None
    )
    found = verdict_of(run, V08, PROBLEM)
    assert codes(found) == ["result", "finding", "check"]
    assert says(found.sentence, "look_for_the_race", "5 elements differ", "(--check)")


def test_an_incorrect_output_is_described_by_its_first_finding() -> None:
    wrong = replace(
        RIGHT,
        passed=False,
        bad_count=5,
        findings=(
            Finding("tail_tile", "Nobody knows where.", 0.95),
            Finding("one_head", "Only head 2 is wrong.", 0.9, "v08_mma_sync.cu:113"),
        ),
    )
    run = replace(
        PASSED, status=Status.INCORRECT, reason="5 are off.", correctness=wrong, latency=None
    )
    found = verdict_of(run, V08, PROBLEM)
    assert found.result == "incorrect"
    assert says(found.finding, "only_is_wrong", "head 2")
    assert found.place == Place("v08_mma_sync.cu", 113)
    assert found.parts[-1].code == "next"
    stale = verdict_of(run, V08, PROBLEM, is_stale=True)
    assert (stale.result, stale.finding) == ("stale", "")
    assert verdict_of(run, V08, PROBLEM, is_running=True).result == "running"


def test_known_faults_have_an_explanation_and_remedy() -> None:
    """The remedy does not tell to look for a line that is already given."""
    unwritten = (
        "mma.cuh:38: uninitialised shared memory in kernel attention_forward, CTA (0,0,0): byte 144"
    )
    run = replace(PASSED, status=Status.LAUNCH_ERROR, reason=unwritten, correctness=None)
    found = verdict_of(run, V08, PROBLEM)
    place = f"{ErrorKind.SHARED_UNINITIALISED} at mma.cuh:38"
    assert found.parts[0].with_place().endswith(place)
    remedy = next_step(run.status, unwritten)
    assert says(remedy, "barrier_before_read")
    assert f"{found.remedy[1:]}." == remedy[1:]
    reason = "my.cu:132: global memory out of bounds in kernel attention_forward: 4-byte read."
    named = verdict_of(replace(run, status=Status.OUT_OF_BOUNDS, reason=reason), V08, PROBLEM)
    assert named.parts[0].with_place().endswith(" at my.cu:132")
    assert not says(named.remedy, "check_build_tells_bounds")
    of_gpu = replace(run, status=Status.OUT_OF_BOUNDS, reason="An illegal address.")
    assert says(verdict_of(of_gpu, V08, PROBLEM).remedy, "check_build_tells_bounds")


@pytest.mark.parametrize("status", [Status.PASSED, Status.INCORRECT, Status.OUT_OF_BOUNDS])
def test_a_partial_verdict_is_labelled(status: Status) -> None:
    some = replace(FAST, partial="partial: 9 of 4,096 CTAs")
    part = replace(PASSED, status=status, reason="It is as it is.", execution=some)
    failed_before = replace(PASSED, status=Status.TIMEOUT, reason="Too slow.")
    found = verdict_of(failed_before, V08, PROBLEM, latency=PREDICTED, is_running=True, part=part)
    assert (found.result, found.partial) == (status.lower(), "9 of 4,096 CTAs")
    assert found.awaits_whole
    assert not found.races_unchecked  # reported at the end for all CTAs
    assert (found.time is None) == (status is not Status.PASSED)
    assert says(found.parts[0].text, "the_rest_is")
    over = verdict_of(PASSED, V08, PROBLEM, latency=PREDICTED)
    assert (over.partial, over.awaits_whole) == ("", False)


def test_unsupported_requests_are_reported_despite_earlier_runs() -> None:
    found = verdict_of(PASSED, V08, PROBLEM, latency=PREDICTED, stopped=Status.SKIPPED)
    assert (found.result, codes(found)) == ("skipped", ["result", "next"])


def test_an_error_in_an_own_description_names_where_to_correct_it(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text(
        "/* attune\nhead_dims = [64]\ndtypes = ['float16']\n[[passes]]\nentry = 'k'\n"
        "grid = ['seqlen', 'batch', 'num_heads']\nthreads = 'seqlen'\n"
        "args = ['q', 'k', 'v', 'out']\n"
        "*/\n__global__ void k(const void* q, const void* k, const void* v, void* o) {}\n"
    )
    kernel = Kernel.of(read_own(source), find_device("L4"), {})
    stopped = {
        seqlen: verdict_of(None, kernel, replace(PROBLEM, seqlen=seqlen), stopped=Status.SKIPPED)
        for seqlen in (512, 2048)
    }
    assert stopped[2048].place == Place("mine.cu", 7)
    assert "threads" in stopped[2048].remedy
    assert stopped[512].place is None
    assert stopped[512].remedy != REMEDIES[Status.SKIPPED]
    of_ladder = verdict_of(None, V08, PROBLEM, stopped=Status.SKIPPED)
    assert of_ladder.remedy == REMEDIES[Status.SKIPPED]


def test_every_kind_of_advice_has_its_words() -> None:
    assert set(NEXT_WORDS) == set(AdviceKind.__args__)


def _time(us: float):
    from engine.history import Time

    return Time(us, us, us, "predicted", "machine code", 0, "", "By machine code.")


def test_advice_names_the_rung_that_follows_it() -> None:
    class Known:
        """Times of two neighbouring rungs; the one that prefetches takes a fifth less."""

        us: ClassVar[dict[str, float]] = {"v09": 50.0, "v10": 40.0}
        calibrated: ClassVar[set[str]] = set()

        def estimate(self, kernel: Kernel, problem: Problem) -> SimpleNamespace:
            assert problem == PROBLEM
            assert kernel.config["block_n"] == V08.config["block_n"]
            us, name = self.us[kernel.variant.id], kernel.variant.id
            note = f" {CALIBRATED} 3 known times." if name in self.calibrated else ""
            time = Latency("predicted", us, us, us, f"{PREDICTED.reason}{note}")
            return SimpleNamespace(latency=time, by_machine_code=True)

    told = {"latency": PREDICTED, "report": REPORT, "history": Known()}
    found = verdict_of(PASSED, V08, PROBLEM, **told).next
    assert found is not None
    assert (found.rung, found.rung_gain, found.low, found.high) == (
        *("v10", pytest.approx(0.2)),
        *(0.02, pytest.approx(0.2)),
    )
    # A calibrated time and one that is not are not comparable.
    Known.calibrated.add("v09")
    found = verdict_of(PASSED, V08, PROBLEM, **told).next
    assert found is not None
    assert found.rung_gain is None
    # A rung that already prefetches is given no other.
    again = verdict_of(PASSED, V11, PROBLEM, **told).next
    assert again is not None
    assert (again.rung, again.high) == ("", 0.10)


def test_another_config_chosen_by_auto_is_distinguished() -> None:
    other = V08.with_config(block_n=32)
    found = verdict_of(None, V08, PROBLEM, latency=PREDICTED, choice=Choice(other, "Smaller."))
    assert found.auto is not None
    assert found.auto.differing == {"block_n": 32}
    for is_final in (True, False):
        choice = Choice(other, "Smaller.", is_final=is_final, time=_time(40.0))
        found = verdict_of(None, V08, PROBLEM, latency=PREDICTED, choice=choice)
        assert says(found.sentence, "fastest_so_far") is not is_final


def test_a_kernel_that_does_not_support_the_problem_is_not_mentioned() -> None:
    floats = replace(PROBLEM, dtype="float32")
    choice = Choice(V11, "No rung takes FP32.")
    assert verdict_of(None, V08, PROBLEM, latency=PREDICTED, choice=choice).auto is not None
    assert verdict_of(None, V08, floats, latency=PREDICTED, choice=choice).auto is None


def test_a_race_names_both_lines() -> None:
    reason = (
        "my.cu:22: shared memory race in kernel k, CTA (0,0,0): read is not ordered with the "
        "earlier write by thread (63,0,0) at my.cu:19: no barrier stands between the two."
    )
    failed = replace(PASSED, status=Status.RACE, reason=reason, correctness=None, latency=None)
    found = verdict_of(failed, V08, PROBLEM)
    assert (found.place, found.other) == (Place("my.cu", 22), Place("my.cu", 19))
    assert "my.cu:22 and my.cu:19" in found.sentence


@pytest.mark.parametrize("build", ["fast", "check"])
def test_a_nan_result_suggests_the_check_build(build: str) -> None:
    finding = Finding(FindingCode.NAN_ROW, "NaN.", 1.0)
    wrong = replace(RIGHT, passed=False, reason="NaN.", findings=(finding,))
    failed = replace(
        PASSED,
        status=Status.INCORRECT,
        reason="NaN.",
        correctness=wrong,
        latency=None,
        execution=replace(FAST, build=build),
    )
    found = verdict_of(failed, V08, PROBLEM)
    assert (codes(found)[-1], found.reads_unchecked) == (
        ("check", True) if build == "fast" else ("next", False)
    )


def test_a_fault_without_a_line_suggests_the_check_build() -> None:
    told = [next_step(Status.LAUNCH_ERROR, "It stopped.", run) for run in (FAST, None)]
    assert "line" in next_step(Status.COMPILE_ERROR, "my.cu(38): expected")
    assert ["--check" in text for text in told] == [True, False]
