"""The ladder's machine code: no spills, no FP64, no conflicts if the header says so, no growth,
and the instructions that a kernel's idea needs.

`python -m tests.machine_code.gate` renews the recorded table; see there.
"""

from __future__ import annotations

import pytest

from kernels.ladder import LADDER
from tests.machine_code.gate import EXCEPTIONS, broken_rules, cases, measure, recorded
from tests.slow_cases import one_in

CASES = cases()
# Each run needs one arch per kernel; v08 on sm_80 is the quickest to compile.
QUICK = CASES.index(("v08", "sm_80"))


@pytest.mark.parametrize(("name", "arch"), one_in(len(CASES), CASES, offset=QUICK, slow=12))
def test_the_machine_code_is_as_good_as_recorded(name: str, arch: str) -> None:
    variant = LADDER.by_id(name)
    excused = {rule for kernel, rule in EXCEPTIONS if kernel == name}
    broken = {
        rule: what for rule, what in broken_rules(variant, arch).items() if rule not in excused
    }
    assert not broken
    now, before = measure(variant, arch), recorded()[f"{name} {arch}"]
    assert now.local_accesses == 0, "registers are spilled, or an array lies on the stack"
    assert now.double_precision == 0
    if variant.work.conflict_ways is not None:
        assert now.conflicts <= before.conflicts, "new bank conflicts"
    grown = now.instructions_per_64_keys / before.instructions_per_64_keys
    assert 0.98 <= grown <= 1.02, (
        f"{before.instructions_per_64_keys} warp instructions per 64 keys were recorded, now they "
        f"are {now.instructions_per_64_keys}: if that is meant: python -m tests.machine_code.gate"
    )


def test_every_kernel_is_recorded() -> None:
    assert set(recorded()) == {f"{name} {arch}" for name, arch in CASES}


@pytest.mark.slow
def test_no_unneeded_exception_is_listed() -> None:
    for name, rule in EXCEPTIONS:
        variant = LADDER.by_id(name)
        assert any(
            rule in broken_rules(variant, arch) for kernel, arch in CASES if kernel == name
        ), f"{name} keeps the rule '{rule}': leave out its exception"
