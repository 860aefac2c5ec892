"""The verdict on a correct result, to be changed with `dataclasses.replace`."""

from engine.attention.evaluation import Correctness

RIGHT = Correctness(
    passed=True,
    reason="Within twice SDPA's error.",
    max_abs_err=1e-4,
    mean_abs_err=1e-5,
    rms_err=2e-5,
    cosine=1.0,
    baseline_err=1e-4,
    baseline_name="SDPA",
    tolerance=3e-4,
    fixed_bound=0.002,
    bad_count=0,
    nonfinite_count=0,
    unwritten_count=0,
    first_bad_index=None,
    inputs_unchanged=True,
    repeatable=True,
    guards_intact=True,
)
