"""Executing part of a launch: a few (batch, head) pairs of a problem past 2^31 elements."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from slow_cases import one_in
from untimed import untimed
from words import raises, says

from engine.attention.evaluation import Evaluation
from engine.attention.plan import TensorArg, make_plan
from engine.attention.problem import Problem
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.backends.partial import MAX_GROUP, PartialRunError
from engine.base.errors import Status
from engine.base.launch_arguments import PassLaunch
from engine.correctness.check import check_against
from engine.correctness.expected import expect
from engine.cuda_on_host.client import Client, RunResult
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.execute import PartialRun, takes_too_long
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import LADDER, by_id

LARGE = Problem(544, 64, 1024, 64, causal=True)  # 1.06 · 2^31 elements in each of Q, K, V and O
SMALL = Problem(2, 3, 200, 32, causal=True)
OPTIONS = RunOptions(timeout_s=60.0)


@pytest.fixture(scope="module")
def backend():
    backend = CpuBackend(Client(workers=2))
    yield backend
    backend.close()


def verdict(backend, plan, options=OPTIONS):
    """Return (result, correctness or None, the part) of a partial run."""
    run = PartialRun.choose(backend, plan, options)
    if isinstance(run, RunResult):
        return run, None, None
    prepared = run.prepare(0, "normal")
    result = run.run(prepared.inputs)
    if result.status is not Status.PASSED:
        return result, None, run.part
    correctness = check_against(prepared.expected.result(), result)[0]
    return result, run.relabel(correctness), run.part


def plan_of(variant_id, problem):
    variant = by_id(variant_id)
    return make_plan(variant, problem, variant.default_config())


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    one_in(len(LADDER), [v for v in LADDER if v.page_rows is None], offset=4, slow=22),
    ids=lambda v: v.id,
)
@pytest.mark.parametrize("check", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_ladder_in_part(backend, variant, check):
    """Splits and second passes are executed with the rows that they work on."""
    for problem in (SMALL, LARGE):
        if variant.unsupported(problem, variant.default_config()):
            continue
        plan = plan_of(variant.id, problem)
        is_persistent = variant.arch_specific and "num_ctas" in plan.config
        if is_persistent and plan.passes[0].ctas < problem.batch * problem.num_heads:
            with raises(PartialRunError, "part_several_heads"):
                verdict(backend, plan, replace(OPTIONS, check=check))
            continue
        if variant.id == "v13":  # its shares begin within query tiles and span heads
            code = "part_begins_within_tile" if problem is SMALL else "part_several_heads"
            with raises(PartialRunError, code):
                verdict(backend, plan, replace(OPTIONS, check=check))
            continue
        result, correctness, part = verdict(backend, plan, replace(OPTIONS, check=check))
        assert result.status is Status.PASSED, result.reason
        assert correctness.passed, correctness.reason
        assert part.pairs[-1] == (problem.batch - 1, problem.num_heads - 1)
        assert part.rows[-1][1] == problem.seqlen
        assert part.ctas < part.total_ctas


def test_heads_that_share_kv_are_executed_together(backend):
    problem = Problem(2, 4, 130, 32, num_heads_kv=2)
    result, correctness, part = verdict(backend, plan_of("v08", problem))
    assert result.status is Status.PASSED, result.reason
    assert correctness.passed, correctness.reason
    assert part.pairs == ((0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3))


@pytest.mark.parametrize("seqlen", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_cta_may_have_a_tile_of_all_heads_of_a_group(backend, seqlen):
    """Decoding kernels pack them: no CTA begins with any but the first head of a group."""
    plan = plan_of("v14", Problem(2, 8, seqlen, 64, num_heads_kv=2, seqlen_kv=300))
    result, correctness, part = verdict(backend, plan)
    assert result.status is Status.PASSED, result.reason
    assert correctness.passed, correctness.reason
    assert part.pairs[-4:] == ((1, 4), (1, 5), (1, 6), (1, 7))
    assert part.rows[-1][1] == seqlen


def test_groups_packed_into_tiles_that_begin_anywhere_have_no_parts(backend):
    """Three heads in tiles of 16 rows: most tiles begin with another head than the first."""
    plan = plan_of("v14", Problem(1, 6, 40, 64, num_heads_kv=2))
    with raises(PartialRunError, "part_several_heads"):
        backend.choose_part(plan, OPTIONS, 1e9)


OUTSIDE = rf"^narrow\.cu:{{}}: {ErrorKind.GLOBAL_BOUNDS} in .* at byte -\d+ of buffer '{{}}'"
OTHER_HEAD = rf"^narrow\.cu:57: {ErrorKind.GLOBAL_OTHER_HEAD} in .* of buffer 'k'"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            *("const size_t q_head = ", "const int q_head = (int)", OUTSIDE.format(57, "q")),
            marks=pytest.mark.slow,
        ),
        ("const size_t kv_head = ", "const int kv_head = (int)", OUTSIDE.format(57, "k")),
        ("const size_t kv_head = ", "const unsigned kv_head = (unsigned)", OTHER_HEAD),
        ("const size_t q_head = ", "const unsigned q_head = (unsigned)", OTHER_HEAD),
        ("out[O_HEAD", "out[(int)O_HEAD", OUTSIDE.format(162, "out")),
    ],
)
@pytest.mark.parametrize("check", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_32_bit_offset_is_found(backend, tmp_path, old, new, expected, check):
    """In a problem that is too large to be executed whole in the host's memory."""
    problem = replace(LARGE, batch=1056) if "unsigned" in new else LARGE
    plan = plan_of("v01", problem)
    for header in plan.source.parent.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    text = plan.source.read_text()
    assert text.count(old) >= 1, old
    source = tmp_path / "narrow.cu"
    source.write_text(text.replace(old, new))
    plan = replace(plan, source=source)
    small = replace(plan_of("v01", SMALL), source=source)
    assert finding(backend, small, OPTIONS) == ""  # no error in a small problem
    found = finding(backend, plan, replace(OPTIONS, check=check))
    # A wrong offset of Q may show earlier, when the CTAs of a head are looked for.
    of_q = new.startswith("const unsigned q_head")
    no_cta = of_q and says(found, "no_cta_on_head", "narrow.cu", "attention_forward")
    assert no_cta or re.search(expected, found), found


def finding(backend, plan, options):
    """Return what is found wrong; an empty text if nothing is."""
    result, correctness, _ = verdict(backend, plan, options)
    if correctness is None:
        return result.reason
    return "" if correctness.passed else correctness.reason


STRANGE = """
extern "C" __global__ void first_head(const unsigned short *q, unsigned short *out) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    out[i] = q[i];
}
extern "C" __global__ void nothing(const unsigned short *q) {}
"""


def test_launches_without_partial_execution(backend, tmp_path):
    source = tmp_path / "tiny.cu"
    source.write_text(STRANGE)
    problem = Problem(1, 2, 128, 32)
    base = plan_of("v01", problem)
    idle = PassLaunch("nothing", (4, 1, 1), 64, 0, (TensorArg("q"),))
    plan = replace(base, source=source, defines=(), scratch=(), passes=(idle,))
    with raises(PartialRunError, "part_untouched"):
        backend.choose_part(plan, OPTIONS, 1e9)
    args = (TensorArg("q"), TensorArg("out"))
    short = PassLaunch("first_head", (64, 1, 1), 64, 0, args)
    not_reached = backend.choose_part(replace(plan, passes=(short,)), OPTIONS, 1e9)
    assert not_reached.status is Status.LAUNCH_ERROR
    assert says(not_reached.reason, "no_cta_on_head", "tiny.cu", "first_head", "(0,1)")
    grouped = plan_of("v08", Problem(1, 2 * MAX_GROUP, 64, 32, num_heads_kv=1))
    with raises(PartialRunError, "part_large_group"):
        backend.choose_part(grouped, OPTIONS, 1e9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem", "config"),
    [
        ("v13", Problem(2, 8, 1024, 64), {"num_ctas": 116}),
        pytest.param("v19", Problem(1, 16, 16384, 128), {}, marks=pytest.mark.exhaustive),
    ],
)
def test_few_persistent_ctas_are_not_reported_as_wrong_offset(backend, name, problem, config):
    """More persistent CTAs than heads, and fewer than query tiles."""
    variant = by_id(name)
    plan = make_plan(variant, problem, variant.default_config() | config)
    assert 16 < plan.passes[0].ctas < 16 * problem.seqlen / 128
    with raises(PartialRunError, "part_several_heads"):
        backend.choose_part(plan, OPTIONS, 1e9)


@pytest.mark.slow
def test_a_partial_evaluation_is_marked_as_such():
    request = EvaluationRequest("v06", LARGE, backend="cpu")
    with untimed() as evaluator:
        evaluation = evaluator.evaluate(request).evaluation
        assert evaluation.status is Status.PASSED, evaluation.reason
        assert re.match(r"Partial: \d+ of 2,228,224 CTAs: \(batch, head\) ", evaluation.reason)
        assert "(543, 63)" in evaluation.reason
        assert evaluation.execution.partial.endswith("of 2,228,224 CTAs")
        small = replace(request, problem=SMALL)
        whole = evaluator.evaluate(small).evaluation
        assert whole.execution.partial == ""
        part = evaluator.evaluate(replace(small, partial="always")).evaluation
        assert part.status is Status.PASSED, part.reason
        assert part.execution.partial.startswith("partial: ")


def test_a_kernel_that_has_no_parts_is_not_called_wrong():
    whole = Problem(1, 1, 64, 64, direction="backward")
    request = EvaluationRequest("v23", whole, backend="cpu", partial="always")
    with untimed() as evaluator:
        refused = evaluator.evaluate(request).evaluation
    assert refused.status is Status.SKIPPED
    assert says(refused.reason, "part_gradients")


def test_rows_outside_the_part_are_not_checked(backend):
    run = PartialRun.choose(backend, plan_of("v01", SMALL), OPTIONS)
    prepared = run.prepare(0, "normal")
    result = run.run(prepared.inputs)
    outside = np.ones(SMALL.seqlen, bool)
    outside[list(run.part.row_numbers)] = False
    assert not result.out[:, :, outside].any()
    expected = prepared.expected.result()
    assert expected.coverage.index(1, 0)[:2] == run.part.pairs[1]
    assert expect(prepared.inputs).coverage.complete


class _Enough(Exception):
    """Raised to end an evaluation whose rest would take ten seconds."""


def _first_look(request: EvaluationRequest, source: Path | None = None) -> Evaluation:
    """Return the verdict that is given before all CTAs are executed."""
    told: list[Evaluation] = []

    def on_part(evaluation: Evaluation) -> None:
        told.append(evaluation)
        raise _Enough

    with Evaluator() as evaluator, pytest.raises(_Enough):
        evaluator.evaluate(request, source=source, on_part=on_part)
    return told[0]


def test_a_few_ctas_of_a_long_run_are_checked_first(tmp_path: Path) -> None:
    long = EvaluationRequest("v01", Problem(8, 16, 512, 64), gpu="L4", backend="cpu")
    part = _first_look(long)
    assert part.status is Status.PASSED, part.reason
    assert part.execution.partial.startswith("partial: ")
    assert part.latency is None  # the rest may still be wrong
    source = by_id("v01").source
    broken = tmp_path / source.name
    for header in source.parent.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    text = source.read_text()
    assert text.count("1.0f / with_sink(") == 1
    broken.write_text(text.replace("1.0f / with_sink(", "1.1f / with_sink("))
    wrong = _first_look(long, broken)
    assert wrong.status is Status.INCORRECT
    assert wrong.reason.startswith("Partial: ")


@pytest.mark.parametrize(("check", "enough_s"), [(False, 600), (True, 5520)])
def test_a_long_run_without_partial_execution_is_refused(check: bool, enough_s: int) -> None:
    """Persistent CTAs take tiles of every head; the run would reach its limit of 60 s."""
    request = EvaluationRequest("v13", Problem(1, 16, 16384, 128), gpu="L4", check=check)
    with untimed() as evaluator:
        ended = evaluator.evaluate(request).evaluation
        plan = plan_of("v13", request.problem)
    assert ended.status is Status.TIMEOUT
    assert says(ended.reason, "launch_too_long", "60", str(enough_s))
    assert says(ended.reason, "part_begins_within_tile")
    assert not takes_too_long(plan, check, enough_s)  # its remedy is accepted


def test_short_runs_have_no_partial_verdict() -> None:
    told: list[Evaluation] = []
    with Evaluator() as evaluator:
        request = EvaluationRequest("v01", SMALL, gpu="L4", backend="cpu")
        whole = evaluator.evaluate(request, on_part=told.append).evaluation
    assert whole.status is Status.PASSED
    # Its verdict may come before its time is simulated, as for all CTAs.
    assert [e for e in told if e.execution is None or e.execution.partial or e.latency] == []
