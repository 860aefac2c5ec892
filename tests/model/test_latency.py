"""The latency model: terms add up, bounds hold, and unknown figures give no prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_history import MadeUpHistory, estimate_of
from words import raises, says

from engine.attention.evaluation import Latency, Resources
from engine.attention.plan import LaunchPlan, capability_reason, make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.choose.batch.batch_table import predict_curve
from engine.devices import all_devices, find_device
from engine.devices.spec import DeviceSpec
from engine.model.equations import Terms
from engine.model.kernel import Kernel
from engine.model.launches import collect, collect_batches, unpadded_conflict_ways
from engine.model.occupancy import ConfiguredVariant
from kernels.ladder import LADDER, by_id
from kernels.variant import Pass, Scratch, Variant, Work, ceil_div

L4 = find_device("L4")
V01, V05 = by_id("v01"), by_id("v05")
ON_L4 = [v for v in LADDER if v.min_compute_capability <= L4.compute_capability]
ASSUMED = MadeUpHistory(registers_of=lambda plan, _: _at_most(plan, 95))


class TooMuch(MadeUpHistory):
    """Reports more shared memory than any SM has."""

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        made = MadeUpHistory().resources(kernel, problem)
        return tuple(replace(r, static_smem_bytes=100 << 10) for r in made)


def _at_most(plan: LaunchPlan, registers: int) -> int:
    threads = max(p.threads for p in plan.passes)
    return min(registers, 65536 // (-(-threads // 128) * 128))


def compiled(
    variant: Variant, problem: Problem, device: DeviceSpec = L4, registers: int = 95
) -> tuple[LaunchPlan, tuple[Resources, ...]]:
    plan = make_plan(variant, problem, variant.default_config())
    registers = _at_most(plan, registers)
    return plan, tuple(
        Resources(p.entry, device.arch, p.threads, registers, 0, p.dynamic_smem_bytes, 0, 0, 0)
        for p in plan.passes
    )


def predicted(
    variant: Variant, problem: Problem, device: DeviceSpec = L4, **kwargs: int
) -> Latency:
    latency = estimate_of(variant, *compiled(variant, problem, device, **kwargs), device).latency
    assert latency is not None
    return latency


def explained(variant: Variant, problem: Problem, device: DeviceSpec = L4) -> SimpleNamespace:
    """Return the terms as plain numbers."""
    result = estimate_of(variant, *compiled(variant, problem, device), device)
    assert result.terms is not None
    numbers = {name: getattr(result.terms, name)[0].item() for name in Terms.__slots__}
    return SimpleNamespace(
        **numbers | {"limited_by": result.terms.limited_by(), "reason": result.reason}
    )


def test_always_labelled_with_origin_interval_and_reason() -> None:
    latency = predicted(V01, Problem(1, 1, 128, 64))
    assert latency.origin == "predicted"
    assert latency.low_us < latency.median_us < latency.high_us
    assert says(latency.reason, "of_sms_idle", "56", "58")
    assert says(latency.reason, "not_calibrated")


def test_uncalibrated_intervals_are_wide() -> None:
    latency = predicted(V01, Problem(1, 1, 512, 64))
    assert latency.high_us / latency.low_us > 15


def test_terms_add_up() -> None:
    e = explained(V01, Problem(32, 8, 128, 64))
    assert (e.ctas, e.ctas_per_sm, e.load_per_sm) == (512, 2, 9)
    # Nine CTAs on the busiest SM, two at a time: four rounds of two and one alone.
    assert e.compute_us == pytest.approx(4 * (e.cta_us + e.shared_us) + e.cta_us)
    assert e.total_us == pytest.approx(e.floor_us + max(e.compute_us, e.l2_us, e.dram_us))
    assert e.limited_by == "CTAs per SM"
    assert says(e.reason, "busiest_sm_works_through", "9 CTAs", "2")


def test_time_follows_the_plan_of_the_variant_not_of_v01() -> None:
    """A KV-split launches more CTAs with less work each: one takes a quarter of the time."""
    problem = Problem(1, 1, 1024, 64)
    split = explained(V05, problem)
    whole = explained(V01, problem)
    assert split.ctas == 4 * whole.ctas
    assert split.fuse_us > 0
    assert whole.fuse_us == 0
    assert split.total_us < whole.total_us / 3


def test_length_is_linear_and_batches_are_free_until_sms_are_full() -> None:
    one, two, four = (predicted(V01, Problem(1, 1, 64 * n, 64)).median_us for n in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one))
    alone = predicted(V01, Problem(1, 1, 64, 64)).median_us
    assert predicted(V01, Problem(58, 1, 64, 64)).median_us == pytest.approx(alone)
    assert predicted(V01, Problem(59, 1, 64, 64)).median_us > 1.1 * alone


def test_a_causal_launch_costs_about_half_when_sms_are_full() -> None:
    full = predicted(V01, Problem(16, 16, 1024, 64)).median_us
    causal = predicted(V01, Problem(16, 16, 1024, 64, causal=True)).median_us
    assert 0.5 < causal / full < 0.6
    # A single tile still has to visit every key.
    alone, alone_causal = (
        predicted(V01, Problem(1, 1, 1024, 64, causal=c)).median_us for c in (False, True)
    )
    assert alone_causal == pytest.approx(alone)


def synthetic(math_unit: str, kv_rows: int, head_dim: int, rows: int = 64) -> Variant:
    """Return a one-pass variant of 128 threads; tensor kernels with tiny tiles are DRAM-bound."""
    return Variant(
        id="vXX",
        name="vXX_synthetic",
        title="synthetic",
        idea="",
        head_dims=(head_dim,),
        dtypes=("float16", "bfloat16"),
        min_compute_capability=(7, 5),
        tunables=(),
        constraints=(),
        scratch=(),
        passes=(
            Pass(
                "main",
                lambda p, _: (p.num_heads * p.batch * ceil_div(p.seqlen, rows), 1, 1),
                lambda _p, _c: 128,
                lambda _p, _c: 16384,
                (),
            ),
        ),
        work=Work(
            math_unit=math_unit,  # type: ignore[arg-type]
            math_threads=lambda _p, _c: 128,
            query_rows=lambda _p, _c: rows,
            kv_rows=lambda _p, _c: kv_rows,
            conflict_ways=lambda _p, _c: 1,
        ),
        source=Path("vXX_synthetic.cu"),
    )


def test_dram_is_the_limit_with_little_computation() -> None:
    e = explained(synthetic("tensor", 16, 64), Problem(64, 64, 512, 64))
    assert e.limited_by == "DRAM"
    # Q, K, V and O once, at most at the L4's 300 GB/s.
    assert e.dram_us > Problem(64, 64, 512, 64).io_bytes / 300e3


def test_data_that_fit_in_l2_cost_no_dram_time() -> None:
    assert explained(V01, Problem(1, 1, 512, 64)).dram_us == 0


def test_never_faster_than_the_peaks() -> None:
    for variant in (*ON_L4, synthetic("tensor", 4096, 64), synthetic("fma", 4096, 64)):
        problem = Problem(8, 32, 4096, 64)
        if variant.unsupported(problem, variant.default_config()) is not None:
            continue
        e = explained(variant, problem)
        peak = L4.fp32_tflops if variant.work.math_unit == "fma" else L4.fp16_tensor_tflops
        assert e.total_us > problem.flops / peak / 1e6
        assert e.compute_us >= e.peak_us
        assert e.compute_us >= e.exp_us


def test_a_better_gpu_is_never_slower() -> None:
    problem = Problem(32, 8, 128, 64)  # long enough for any variant, short enough for v12
    for variant in ON_L4:
        l4, h100 = (predicted(variant, problem, find_device(n)).median_us for n in ("L4", "H100"))
        assert h100 < l4


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(LADDER),
    st.sampled_from(all_devices()),
    st.integers(1, 512),
    st.integers(1, 32),
    st.integers(1, 2048),
    st.booleans(),
)
def test_every_prediction_is_ordered_and_finite(
    variant: Variant, device: DeviceSpec, batch: int, heads: int, seqlen: int, causal: bool
) -> None:
    problem = Problem(batch, heads, seqlen, 64, causal)
    if variant.unsupported(problem, variant.default_config()) is not None:
        return
    if capability_reason(variant, problem.dtype, device) is not None:
        return
    latency = predicted(variant, problem, device, registers=64)
    assert 0 < latency.low_us < latency.median_us < latency.high_us < float("inf")


@settings(deadline=None, max_examples=30)
@given(st.sampled_from((V01, V05)), st.integers(1, 64), st.integers(1, 600))
def test_the_curve_never_falls_and_equals_single_predictions(
    variant: Variant, heads: int, seqlen: int
) -> None:
    problem = Problem(1, heads, seqlen, 64)
    config = variant.default_config()
    curve = predict_curve(Kernel.of(variant, L4), problem, range(1, 200), ASSUMED).table
    assert (np.diff(curve["predicted_us"]) >= -1e-9).all()
    assert (np.diff(curve["load_per_sm"]) >= 0).all()
    for batch in (1, 7, 199):
        row = curve[curve["batch"] == batch].iloc[0]
        one = predicted(variant, replace(problem, batch=batch))
        assert row["predicted_us"] == pytest.approx(one.median_us)
        assert row["low_us"] == pytest.approx(one.low_us)
        assert row["high_us"] == pytest.approx(one.high_us)
        plan = make_plan(variant, replace(problem, batch=batch), config)
        assert row["ctas"] == plan.passes[0].ctas
        assert row["device_bytes"] == plan.device_bytes


def _batch_branching() -> Variant:
    """Return a variant whose grid branches on the batch, so that arrays cannot be evaluated."""
    base = synthetic("tensor", 64, 64)

    def grid(p: Problem, _: object) -> tuple[int, int, int]:
        return (min(58, p.batch * p.num_heads) if p.batch > 2 else 1, 1, 1)

    scratch = Scratch("partial", "float32", lambda p, _: (max(p.batch, 3), 4))
    return replace(base, passes=(replace(base.passes[0], grid=grid),), scratch=(scratch,))


@pytest.mark.parametrize("variant", [*LADDER, _batch_branching()], ids=lambda v: v.id)
def test_array_and_single_evaluation_of_formulas_agree(variant: Variant) -> None:
    batches = np.arange(1, 300)
    problem = Problem(1, 3, 113, 64, causal=True)  # short enough for v12's one CTA per head
    kernel = Kernel.of(variant, "L4")
    fast = collect_batches(kernel, problem, batches)
    slow = collect(kernel, [replace(problem, batch=int(b)) for b in batches])
    for name in fast.__slots__:
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name), err_msg=name)


@pytest.mark.parametrize(
    ("batches", "code"),
    [([], "curve_empty"), ([0, 1], "size_too_small"), ([1, 70_000], "problem_not_taken")],
)
def test_a_curve_rejects_what_cannot_be_launched(batches: list[int], code: str) -> None:
    problem = Problem(1, 1, 64, 64)
    with raises(InvalidProblem, code):
        predict_curve(Kernel.of(V01, L4), problem, batches, ASSUMED)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("num_sms", "number of SMs"),
        ("boost_clock_mhz", "clock"),
        ("fp32_tflops", "FP32 peak"),
        ("memory_gb_per_s", "memory bandwidth"),
        ("l2_bytes", "L2 size"),
    ],
)
def test_unknown_figures_give_a_message_and_no_number(field: str, words: str) -> None:
    device = replace(L4, **{field: None})
    problem = Problem(1, 1, 64, 64)
    plan, resources = compiled(V01, problem)
    result = estimate_of(V01, plan, resources, device)
    assert (result.latency, result.terms) == (None, None)
    assert words in result.reason
    with raises(InvalidProblem, "not_predicted", words):
        predict_curve(Kernel.of(V01, device), problem, [1], ASSUMED)


def test_bf16_has_no_prediction_on_turing_tensor_cores() -> None:
    t4, problem = find_device("T4"), Problem(1, 1, 64, 64, dtype="bfloat16")
    variant = synthetic("tensor", 64, 64)
    result = estimate_of(variant, *compiled(variant, problem, t4), t4)
    assert result.latency is None
    assert says(result.reason, "tensor_peak", "BF16")


def test_a_kernel_that_does_not_fit_is_not_predicted() -> None:
    plan, resources = compiled(V01, Problem(1, 1, 64, 64))
    too_much = tuple(replace(r, static_smem_bytes=100 << 10) for r in resources)
    result = estimate_of(V01, plan, too_much, L4)
    assert result.latency is None
    assert says(result.misfit, "does_not_fit", plan.passes[0].entry, "L4")
    assert result.reason == result.misfit
    with raises(InvalidProblem, "no_cta_fits", "v01", "L4"):
        predict_curve(Kernel.of(V01, L4), plan.problem, [1], TooMuch())


@pytest.mark.parametrize(
    ("variant", "gpu", "name"),
    [
        (V05, "L4", None),
        (replace(V05, min_compute_capability=(9, 0)), "L4", "needs_compute_capability"),
        (
            replace(V05, min_compute_capability=(9, 0), arch_specific=True),
            "B200",
            "arch_of_one_capability",
        ),
    ],
)
def test_the_compute_capability_is_checked(variant: Variant, gpu: str, name: str | None) -> None:
    problem, kernel = Problem(1, 1, 64, 64), Kernel.of(variant, gpu)
    why = kernel.unsupported(problem)
    if name is None:
        assert why is None
        assert kernel.plan(problem).config == kernel.config
    else:
        assert says(str(why), name, "9.0")
        with raises(InvalidProblem, "launch_not_taken", str(why)):
            kernel.plan(problem)
    tensor, in_bf16 = LADDER.by_id("v08"), replace(problem, dtype="bfloat16")
    for other, refused in (("T4", True), ("L4", False)):
        why = Kernel.of(tensor, other).unsupported(in_bf16)
        assert (says(str(why), "those_of_have", "BF16")) == refused
    assert ConfiguredVariant(variant, kernel.values, None).unsupported(problem) is None
    of_no_value = ConfiguredVariant(variant, (("block_n", 17),), None)
    assert "block_n" in str(of_no_value.unsupported(problem))


def test_spills_are_mentioned() -> None:
    plan, resources = compiled(V01, Problem(1, 1, 64, 64))
    spilling = tuple(replace(r, spill_store_bytes=8, spill_load_bytes=16) for r in resources)
    latency = estimate_of(V01, plan, spilling, L4).latency
    assert latency is not None
    assert "24 bytes" in latency.reason


@pytest.mark.parametrize(
    ("head_dim", "math_threads", "rows", "ways"),
    [
        (64, 64, 64, 32),  # one row per lane, rows 128 bytes apart: all in one bank
        (4, 64, 64, 2),  # rows 8 bytes apart: every second bank
        (32, 64, 64, 16),
        (96, 64, 64, 16),
        (64, 256, 64, 8),  # four lanes share a row
        (64, 1024, 16, 1),  # a whole warp on one row
    ],
)
def test_bank_conflicts(head_dim: int, math_threads: int, rows: int, ways: int) -> None:
    assert unpadded_conflict_ways(2 * head_dim, math_threads, rows) == ways
    # Counted directly: distinct words per bank over the rows that a warp's lanes read.
    lanes_per_row = max(1, math_threads // rows)
    words = {(lane // lanes_per_row) * head_dim * 2 // 4 for lane in range(32)}
    banks = [word % 32 for word in words]
    assert max(banks.count(b) for b in banks) == ways
