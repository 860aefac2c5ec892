"""The pipeline: its order, and statuses of broken kernels, missing tools and invalid requests."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from words import raises, says

import engine.pipeline.evaluation_run as pipeline
from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.backends.machine_code import MachineCodeBackend
from engine.base.errors import Status, UnknownName
from engine.base.schema import decode, encode
from engine.cuda_on_host.client import RunResult
from engine.history import History
from engine.machine_code import execution
from engine.model.kernel import compile_plan
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.execute import where_to_execute
from engine.pipeline.request import EvaluationRequest, preview, resolve

SMALL = Problem(1, 1, 65, 64)
Mutate = Callable[..., Path]


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with Evaluator() as made:
        yield made


# A tunable of the description that requires a compiler that is not installed.
NO_SUCH_NVRTC = (
    "[tunables]\n",
    '[tunables]\nnvrtc = {values = [901], default = 901, meaning = "the compiler"}\n',
)


def request(variant: str = "v01", problem: Problem = SMALL, **fields: Any) -> EvaluationRequest:
    return EvaluationRequest(variant, problem, **{"gpu": "L4", "backend": "cpu", **fields})


@pytest.fixture
def mutate(tmp_path: Path) -> Mutate:
    """Return mutate((old, new), …): the source of v01 or `variant` with each `old` replaced."""

    def apply(*replacements: tuple[str, str], variant: str = "v01") -> Path:
        source = find_variant(variant).source
        text = source.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        for header in source.parent.glob("*.cuh"):
            (tmp_path / header.name).write_text(header.read_text())
        mutated = tmp_path / source.name
        mutated.write_text(text)
        return mutated

    return apply


def test_a_missing_barrier_is_found_by_another_thread_order(
    evaluator: Evaluator, mutate: Mutate
) -> None:
    """In order every element is NaN, which has many possible causes."""
    source = mutate(("__syncthreads();", ""))
    found = evaluator.evaluate(request(gpu=None), source=source).evaluation
    assert found.status is Status.INCORRECT
    assert found.correctness is not None
    assert [f.pattern for f in found.correctness.findings] == ["order_of_threads"]


def test_a_correct_kernel_passes_with_a_prediction(evaluator: Evaluator) -> None:
    stages: list[str] = []
    outcome = evaluator.evaluate(request(), stages.append)
    e = outcome.evaluation
    assert e.status is Status.PASSED, e.reason
    assert e.correctness is not None
    assert e.correctness.passed
    assert e.latency is not None
    assert e.latency.origin == "predicted"
    assert e.execution is not None
    assert e.execution.cpu_execution_ms is not None
    assert e.baselines == ()  # SDPA on the CPU is no baseline for a GPU
    assert len(outcome.maps) == 3
    assert [s.split()[0] for s in stages] == ["Compiling", "Executing", "Checking", "Simulating"]


def test_an_incorrect_kernel_stops_before_any_timing(evaluator: Evaluator, mutate: Mutate) -> None:
    source = mutate(("softmax_scale * LOG2_E", "LOG2_E"))
    outcome = evaluator.evaluate(request(), source=source)
    e = outcome.evaluation
    assert e.status is Status.INCORRECT
    assert e.latency is None
    assert outcome.predicted is None  # nothing was shown, so that nothing is recorded
    assert e.correctness is not None
    assert not e.correctness.passed
    assert len(outcome.maps) == 3
    assert e.main_pass is not None  # its occupancy is still known


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s_row[n] * scale_log2 - m_scaled", "s_row[n] * scale_log2"),  # no maximum subtracted
        # A maximum that starts at 0.
        pytest.param(
            "float m_new = m;", "float m_new = fmaxf(m, 0.0f);", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_the_check_runs_extreme_inputs_too_and_names_them(
    evaluator: Evaluator, mutate: Mutate, old: str, new: str
) -> None:
    also = [("fast_exp2(m * scale_log2 - m_scaled)", "1.0f")] if "m_scaled" in old else []
    source = mutate((old, new), *also)
    assert evaluator.evaluate(request(), source=source).evaluation.status is Status.PASSED
    outcome = evaluator.evaluate(request(check=True), source=source)
    e = outcome.evaluation
    assert e.status is Status.INCORRECT
    assert says(one_sentence(e), "with_other_inputs", "extreme")
    assert e.correctness is not None
    assert e.correctness.reason == e.reason
    assert len(outcome.maps) == 3


@pytest.mark.slow
def test_a_passed_check_names_both_inputs_and_keeps_the_first(evaluator: Evaluator) -> None:
    stages: list[str] = []
    e = evaluator.evaluate(request(check=True), stages.append).evaluation
    assert e.status is Status.PASSED
    assert says(e.reason, "inputs_largest_error", "extreme")
    assert e.correctness is not None
    assert e.reason.startswith(e.correctness.reason)
    assert says(stages, "executing_stage", "extreme inputs")
    only = evaluator.evaluate(request(check=True, input_kind="extreme")).evaluation
    assert only.status is Status.PASSED
    assert not says(only.reason, "inputs_largest_error")


def test_the_reference_of_a_problem_is_computed_once(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator.evaluate(request())

    def never(*_: Any) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr("engine.correctness.expected.expect", never)
    for e in (evaluator.evaluate(request(name)).evaluation for name in ("v02", "v08")):
        assert e.status is Status.PASSED, e.reason


def one_sentence(e: Evaluation) -> str:
    assert e.reason
    assert "\n" not in e.reason
    assert "Traceback" not in e.reason
    assert e.latency is None
    return e.reason


def test_a_syntax_error_names_file_and_line(evaluator: Evaluator, mutate: Mutate) -> None:
    source = mutate(("float l = 0.0f;", "float l = 0.0f"))
    e = evaluator.evaluate(request(), source=source).evaluation
    assert e.status is Status.COMPILE_ERROR
    assert "v01_fa1_baseline.cu" in one_sentence(e)
    assert e.log


def test_a_syntax_error_without_nvrtc_names_file_and_line_too(
    evaluator: Evaluator, mutate: Mutate
) -> None:
    source = mutate(NO_SUCH_NVRTC, ("float l = 0.0f;", "float l = 0.0f"))
    e = evaluator.evaluate(request(), source=source).evaluation
    assert e.status is Status.COMPILE_ERROR
    assert "v01_fa1_baseline.cu" in one_sentence(e)


@pytest.mark.slow
def test_an_endless_kernel_times_out(evaluator: Evaluator, mutate: Mutate) -> None:
    source = mutate(("n0 += BLOCK_N", "n0 += 0 * BLOCK_N"))
    e = evaluator.evaluate(request(timeout_s=2.0), source=source).evaluation
    assert e.status is Status.TIMEOUT
    assert "2" in one_sentence(e)
    # The next evaluation is not affected.
    assert evaluator.evaluate(request()).evaluation.status is Status.PASSED


def test_a_write_out_of_bounds_is_found(evaluator: Evaluator, mutate: Mutate) -> None:
    source = mutate(("(size_t)query * HEAD_DIM_V + d] =", "(size_t)query * HEAD_DIM_V + d + 64] ="))
    e = evaluator.evaluate(request(), source=source).evaluation
    assert e.status in (Status.OUT_OF_BOUNDS, Status.INCORRECT)
    one_sentence(e)
    e = evaluator.evaluate(request(check=True), source=source).evaluation
    assert e.status is Status.OUT_OF_BOUNDS
    assert "'out'" in one_sentence(e) or "out" in e.reason
    assert "v01_fa1_baseline.cu:" in e.reason


def test_a_crash_costs_one_evaluation(evaluator: Evaluator, mutate: Mutate) -> None:
    source = mutate(("float l = 0.0f;", "float l = 0.0f; *(volatile int*)16 = 1;"))
    e = evaluator.evaluate(request(), source=source).evaluation
    assert e.status in (Status.CRASHED, Status.OUT_OF_BOUNDS)
    one_sentence(e)


def test_unknown_names_are_reported_before_anything_else(evaluator: Evaluator) -> None:
    with raises(UnknownName, "unknown_variant"):
        evaluator.evaluate(request("v0l"))
    with raises(UnknownName, "gpu_unknown", "L4"):
        evaluator.evaluate(request(gpu="L5"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"problem": Problem(1, 1, 64, 80)}, "head_dim 80"),
        ({"config": {"block_n": 48}}, "block_n=48"),
        ({"config": {"blok_n": 32}}, "blok_n"),
        ({"problem": Problem(70_000, 1, 64, 64)}, "65,535"),
    ],
)
def test_unsupported_problems_are_skipped(
    evaluator: Evaluator, fields: dict[str, Any], says: str
) -> None:
    e = evaluator.evaluate(request(**fields)).evaluation
    assert e.status is Status.SKIPPED
    assert says in one_sentence(e)


def test_a_kernel_that_fits_no_sm_is_skipped(evaluator: Evaluator, mutate: Mutate) -> None:
    source = mutate(("+ block_m * block_n * 4", "+ block_m * block_n * 4 + 150 * 1024"))
    e = evaluator.evaluate(request(), source=source).evaluation
    assert e.status is Status.SKIPPED
    assert says(one_sentence(e), "does_not_fit", "L4")
    assert e.main_pass is not None
    assert e.main_pass.occupancy.ctas_per_sm == 0


def test_too_much_memory_is_reported_before_any_allocation(evaluator: Evaluator) -> None:
    e = evaluator.evaluate(request(problem=Problem(4096, 64, 65536, 128))).evaluation
    assert e.status is Status.OUT_OF_MEMORY
    assert one_sentence(e).count("B") >= 2  # bytes needed and bytes free


def test_without_a_device_compiler_correctness_is_still_real(
    evaluator: Evaluator, mutate: Mutate
) -> None:
    e = evaluator.evaluate(request(), source=mutate(NO_SUCH_NVRTC)).evaluation
    assert e.status is Status.PASSED, e.reason
    assert e.passes == ()
    assert e.latency is None
    assert len(e.notes) == 1
    assert says(e.notes[0], "nvrtc_version_missing", "9.1")


def test_the_roofline_is_known_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolved = resolve(request(gpu="L4"), History())
    assert resolved.kernel is not None
    compile_plan(resolved.kernel.plan(SMALL), resolved.kernel.device.arch)
    compiled = preview(request(gpu="L4"), History())
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    seen = preview(request(gpu="L4"), History())
    assert (seen.needs_compile, seen.estimate, seen.predicted) == (True, None, None)
    assert seen.bound_us is not None
    assert compiled.estimate is not None
    assert compiled.estimate.terms is not None
    assert seen.bound_us == pytest.approx(float(compiled.estimate.terms.bound_us[0]))


def test_a_missing_host_compiler_gives_installation_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ATTUNE_CXX", str(tmp_path / "no-such-g++"))
    with Evaluator() as fresh:
        e = fresh.evaluate(request()).evaluation
    assert e.status in (Status.LAUNCH_ERROR, Status.COMPILE_ERROR)
    assert "g++" in one_sentence(e)


def test_every_stage_of_the_request_survives_json() -> None:

    made = request(config={"block_n": 32}, check=True, schedule="reverse", seed=3)
    assert decode(EvaluationRequest, encode(made)) == made


def test_preview_runs_nothing_and_agrees_with_the_evaluation(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    e = evaluator.evaluate(request()).evaluation
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
        assert preview(request()).needs_compile
        assert list(tmp_path.iterdir()) == []
    seen = preview(request())
    assert not seen.needs_compile
    assert seen.passes == e.passes
    assert seen.latency is not None
    assert e.latency is not None
    assert seen.latency.median_us == e.latency.median_us


def test_few_modules_are_entered(evaluator: Evaluator) -> None:
    """The modules that a preview and an evaluation with warm caches enter."""
    evaluator.evaluate(request())
    for act, most in (
        (lambda: preview(request()), 20),
        (lambda: evaluator.evaluate(request()), 35),
    ):
        entered = _modules_entered(act)
        assert len(entered) <= most, entered


def _modules_entered(act: Callable[[], object]) -> list[str]:
    root = Path(__file__).resolve().parents[2]
    files = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    tops = [str(root / top) for top in ("engine", "kernels")]
    return sorted(f.removeprefix(f"{root}/") for f in files if f.startswith(tuple(tops)))


def test_preview_gives_the_reason_of_unsupported_requests() -> None:
    assert "head_dim 80" in (preview(request(problem=Problem(1, 1, 64, 80))).unsupported or "")
    seen = preview(request(problem=Problem(4096, 64, 65536, 128)))
    assert seen.memory is not None


def test_a_nan_row_can_be_written_to_the_journal(evaluator: Evaluator, mutate: Mutate) -> None:
    import json

    source = mutate(
        (
            "to_element(acc_rmem[d] * inv_l)",
            "to_element(query == 3 ? INFINITY - INFINITY : acc_rmem[d] * inv_l)",
        )
    )
    mutated = evaluator.evaluate(request(), source=source).evaluation
    assert mutated.status is Status.INCORRECT, mutated.reason
    assert mutated.correctness is not None
    assert mutated.correctness.nonfinite_count == 64
    assert any("NaN" in f.sentence for f in mutated.correctness.findings)
    json.dumps(encode(mutated), allow_nan=False)


# ---- which backend executes a kernel without a GPU ----

LARGE_ENOUGH = Problem(1, 16, 512, 64)  # 1.07 GFLOP


@pytest.mark.parametrize(
    ("variant", "problem", "fields", "where"),
    [
        ("v08", LARGE_ENOUGH, {}, "machine-code"),
        ("v08", LARGE_ENOUGH, {"backend": "cpu"}, "cpu"),
        ("v08", LARGE_ENOUGH, {"check": True}, "cpu"),
        ("v08", LARGE_ENOUGH, {"schedule": "random"}, "cpu"),
        ("v08", LARGE_ENOUGH, {"partial": "always"}, "cpu"),
        ("v08", SMALL, {}, "cpu"),
        ("v08", SMALL, {"backend": "machine-code"}, "machine-code"),
        ("v04", LARGE_ENOUGH, {}, "cpu"),  # no tensor cores
        ("v08", Problem(64, 64, 8192, 128), {}, "cpu"),  # in part, as the whole would take hours
    ],
)
def test_the_backend_is_chosen_in_one_place(
    variant: str,
    problem: Problem,
    fields: dict[str, Any],
    where: str,
) -> None:
    execution.prepare()
    asked = request(variant, problem, **{"backend": "auto", **fields})
    resolved = resolve(asked)
    plan = resolved.plan(problem)
    assert where_to_execute(asked, resolved, plan) == (where, None)


def test_the_verdict_does_not_wait_for_the_simulation(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Evaluation | str] = []
    real = pipeline.EvaluationRun._estimate

    def unknown_before(*args: Any, simulates: bool) -> Any:
        if simulates:
            told.append("simulated")
        return dataclasses.replace(real(*args, simulates=False), by_machine_code=False)

    monkeypatch.setattr(pipeline.EvaluationRun, "_estimate", unknown_before)
    evaluator.evaluate(request(), on_part=told.append)
    first, second = told
    assert isinstance(first, Evaluation)
    assert (first.status, first.latency) == (Status.PASSED, None)
    assert first.execution is not None
    assert first.execution.partial == ""
    assert second == "simulated"


def test_a_simulated_time_has_a_note_on_the_power_limit() -> None:
    problem = Problem(1, 16, 512, 128)
    kernel = resolve(request("v08", problem)).kernel
    assert kernel is not None
    estimate = History().estimate(kernel, problem)
    assert estimate.latency is not None
    assert estimate.latency.is_simulated
    flops = float(problem.flops)
    for tensor_flops, expected in ((flops, "72 W"), (flops / 100, "")):
        note = estimate.power_limit_note(tensor_flops, flops / 1e6)
        assert (expected in note) if expected else not note


def test_machine_code_is_not_waited_for_where_it_must_be_built_first() -> None:
    for problem, where in ((LARGE_ENOUGH, "cpu"), (Problem(32, 16, 512, 128), "machine-code")):
        asked = request("v08", problem, backend="auto")
        resolved = resolve(asked)
        plan = resolved.plan(problem)
        assert where_to_execute(asked, resolved, plan, has_emulator=False)[0] == where


@pytest.mark.slow
def test_kernels_with_tensor_cores_are_executed_as_machine_code(
    evaluator: Evaluator, mutate: Mutate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part's verdict comes first; unsupported machine code is executed as a host build."""
    execution.prepare()
    monkeypatch.setattr("engine.pipeline.execute._A_WHILE_S", 0.0)
    asked = request("v08", LARGE_ENOUGH, backend="auto")
    parts: list[Evaluation] = []
    whole = evaluator.evaluate(asked, on_part=parts.append, simulates=False).evaluation
    assert whole.status is Status.PASSED, whole.reason
    assert whole.execution is not None
    assert (whole.execution.backend, whole.execution.partial) == ("machine-code", "")
    assert says(whole.executed_as, "machine_code_in_software", "sm_89")
    assert [(p.status, p.execution and p.execution.backend) for p in parts] == [
        (Status.PASSED, "machine-code")
    ]
    assert parts[0].execution is not None
    assert parts[0].execution.partial

    refused = RunResult(Status.SKIPPED, "v08: X at 0x0 is not supported here.")

    class Refusing(MachineCodeBackend):
        def run(self, *_: object) -> RunResult:
            return refused

    with Evaluator(backends={"machine-code": Refusing()}) as other:
        built = other.evaluate(asked, simulates=False).evaluation
    assert built.status is Status.PASSED
    assert built.execution is not None
    assert built.execution.backend == "cpu"
    assert any(refused.reason in note for note in built.notes)

    source = mutate(("1.0f / row_sum", "1.1f / row_sum"), variant="v08")
    wrong = evaluator.evaluate(
        asked, source=source, on_part=parts.append, simulates=False
    ).evaluation
    assert wrong.status is Status.INCORRECT
    assert parts[-1].status is Status.INCORRECT
    assert wrong.correctness is not None
    assert wrong.correctness.findings
