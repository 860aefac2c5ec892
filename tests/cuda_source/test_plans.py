"""Compiling launch plans: every pass, and the target of the GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from slow_cases import one_in

from engine.attention.evaluation import Resources
from engine.attention.plan import LaunchPlan, make_plan, resources
from engine.attention.problem import Problem
from engine.base.launch_arguments import PassLaunch
from engine.model.kernel import cached_kernel, compile_plan
from kernels.ladder import LADDER
from kernels.variant import Variant
from tests.fitting import fitting_config

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")


def plan_of(source: Path, **changes: object) -> LaunchPlan:
    plan = LaunchPlan(
        variant="t01",
        problem=Problem(1, 1, 16, 32),
        config={},
        source=source,
        defines=(("TILE", "64"),),
        scratch=(),
        passes=(
            PassLaunch("staged", (1, 1, 1), 64, 1024, ()),
            PassLaunch("plain", (2, 1, 1), 32, 0, ()),
        ),
    )
    return dataclasses.replace(plan, **changes)


def test_resources_follow_the_passes(data: Path) -> None:
    plan = plan_of(data / "two_entries.cu")
    compiled = compile_plan(plan, "sm_86")
    first, second = resources(plan, compiled)
    registers = compiled.entries["staged"].registers_per_thread
    assert first == Resources("staged", "sm_86", 64, registers, 256, 1024, 0, 0, 0)
    assert first.smem_bytes == 1280
    assert (second.entry, second.threads_per_cta, second.smem_bytes) == ("plain", 32, 0)


def test_a_plan_that_needs_the_arch_specific_target_gets_it(data: Path) -> None:
    plan = plan_of(data / "two_entries.cu", arch_specific=True)
    assert compile_plan(plan, "sm_90").arch == "sm_90a"
    assert compile_plan(plan, "sm_90a").arch == "sm_90a"


def test_the_cached_kernel_is_the_compiled_one(data: Path) -> None:
    plan = plan_of(data / "two_entries.cu")
    assert cached_kernel(plan, "sm_86") is None
    compiled = compile_plan(plan, "sm_86")
    assert cached_kernel(plan, "sm_86") == compiled
    assert cached_kernel(plan, "sm_80") is None


def test_looking_into_the_cache_never_fails(data: Path) -> None:
    plan = plan_of(data / "two_entries.cu")
    assert cached_kernel(plan, "sm_77") is None
    assert cached_kernel(plan, "no arch") is None
    assert cached_kernel(plan_of(data / "absent.cu"), "sm_86") is None

    no_such_compiler = dataclasses.replace(plan, defines=(*plan.defines, ("NVRTC", "901")))
    assert cached_kernel(no_such_compiler, "sm_86") is None


ARCHS = {(7, 5): "sm_75", (8, 0): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90", (12, 0): "sm_120"}


@pytest.mark.parametrize(
    "variant", one_in(len(LADDER), list(LADDER), offset=1, slow=22), ids=lambda v: v.id
)
def test_every_variant_compiles_for_the_archs_in_its_header(variant: Variant) -> None:
    needed = variant.min_compute_capability
    claimed = [
        arch
        for capability, arch in ARCHS.items()
        if (capability == needed if variant.arch_specific else capability >= needed)
    ]
    assert claimed
    for arch in claimed:
        dtypes = [d for d in variant.dtypes if arch != "sm_75" or d == "float16"]
        problem = Problem(1, 1, 128, max(variant.head_dims), dtype=dtypes[-1])
        plan = make_plan(variant, problem, fitting_config(variant, problem))
        found = resources(plan, compile_plan(plan, arch))
        assert [r.entry for r in found] == [p.entry for p in plan.passes]
        assert all(0 < r.registers_per_thread * r.threads_per_cta <= 65536 for r in found), arch
