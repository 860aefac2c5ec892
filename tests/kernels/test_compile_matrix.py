"""The ladder compiles for every arch without spills or local memory.

A representative part of the matrix, without spills: every variant on every arch, with D, dtype,
mask and config in turn, so that each value of each occurs. Exhaustive tests compile every config
for every arch, of which some spill.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from slow_cases import of_each

from engine.attention.config import resolve_config
from engine.attention.problem import Direction, Problem
from engine.cuda_source.nvrtc import compile_kernel
from kernels.ladder import LADDER
from kernels.variant import Variant

_NO_CLUSTERS = ("sm_75", "sm_80", "sm_86", "sm_89")
ARCHS = (*_NO_CLUSTERS, "sm_90", "sm_100", "sm_120")

pytest.importorskip("cupy", reason="NVRTC comes through CuPy: install the extra cuda13")


def _configs(variant: Variant) -> list[dict[str, int]]:
    """Return the default config, and one for each other value of each tunable."""
    default = variant.default_config()
    others = [
        default | {t.name: value}
        for t in variant.tunables
        for value in t.values
        if value != t.default
    ]
    return [default, *others]


def _compute_capability(arch: str) -> tuple[int, int]:
    major, minor = divmod(int(arch.removeprefix("sm_")), 10)
    return major, minor


def _builds(variant: Variant) -> list[tuple[str, Problem, dict[str, int]]]:
    """Return builds that cover every arch, config and head_dim."""
    configs, dims = _configs(variant), variant.head_dims
    least = variant.min_compute_capability
    archs = [a for a in ARCHS if _compute_capability(a) >= least]
    if variant.arch_specific:
        archs = [a for a in archs if _compute_capability(a) == least]
    builds = []
    for number in range(max(len(configs), 2 * len(archs))):
        config = configs[number % len(configs)]
        able = [a for a in archs if config.get("cluster_size", 1) == 1 or a not in _NO_CLUSTERS]
        arch = able[number % len(able)] + "a" * variant.arch_specific
        dtype = variant.dtypes[number // 2 % len(variant.dtypes)]
        if arch == "sm_75" and variant.work.math_unit == "tensor":
            dtype = "float16"  # the only type of its tensor cores
        causal = number % 3 != 0
        direction: Direction = "backward" if variant.is_backward else "forward"
        head_dim = dims[number % len(dims)]
        problem = Problem(1, 1, 32, head_dim, causal=causal, dtype=dtype, direction=direction)
        if head_dim > 128:  # changed values are kept, the others are fitted
            given = {n: x for n, x in config.items() if x != configs[0][n]}
            config = resolve_config(variant, given, problem, None).values
        if variant.unsupported(problem, config) is None:
            builds.append((arch, problem, config))
    return builds


# Bytes that two row tiles of 96 or 128 columns under a mask spill: no table of `auto` has these.
SPILLS = {
    "v11-sm_75-6": 8,
    "v13-sm_75-6": 100,
    "v13-sm_75-13": 32,
    "v13-sm_100-18": 48,
}


def _named(variant: Variant) -> Iterator[Any]:
    for i, build in enumerate(_builds(variant)):
        name = f"{variant.id}-{build[0]}-{i}"
        yield pytest.param(variant, *build, SPILLS.get(name, 0), id=name)


BUILDS = [build for variant in LADDER.every() for build in _named(variant)]


@pytest.mark.parametrize(
    ("variant", "arch", "problem", "config", "spill_bytes"), of_each(BUILDS, slow=4)
)
def test_compiles_without_spills(
    variant: Variant, arch: str, problem: Problem, config: dict[str, int], spill_bytes: int
) -> None:
    entries = tuple(launch.entry for launch in variant.passes)
    kernel = compile_kernel(variant.source, variant.defines(problem, config), arch, entries)
    assert set(kernel.entries) == set(entries)
    assert "warning" not in kernel.log.lower()
    for launch in variant.passes:
        info = kernel.entries[launch.entry]
        assert info.spill_store_bytes == spill_bytes
        assert spill_bytes or info.spill_load_bytes == info.stack_bytes == 0
        threads = launch.threads(problem, config)
        assert 0 < info.registers_per_thread * threads <= 65536
        # All shared memory is dynamic, so that one formula gives its size.
        assert info.static_smem_bytes == 0 or launch.dynamic_smem_bytes(problem, config) == 0


# Numbers of a launch, which do not change the code.
_OF_A_LAUNCH = ("num_ctas", "num_splits", "kv_mib")


def every_config(variant: Variant, arch: str) -> Iterator[tuple[Problem, dict[str, int]]]:
    """Return every config that changes the code, if some problem runs with it on `arch`.

    D, dtype, mask and the numbers of a launch are drawn for each config, from a separate seed.
    """
    able = _compute_capability(arch)
    need = variant.min_compute_capability
    if able < need or (variant.arch_specific and able != need):
        return
    direction: Direction = "backward" if variant.is_backward else "forward"
    dtypes = variant.dtypes
    if arch == "sm_75" and variant.work.math_unit == "tensor":
        dtypes = tuple(dtype for dtype in dtypes if dtype == "float16")
    problems = [
        Problem(1, 1, 32, head_dim, causal=causal, dtype=dtype, direction=direction)
        for head_dim, causal, dtype in product(variant.head_dims, (False, True), dtypes)
    ]
    shaping = [t for t in variant.tunables if t.name not in _OF_A_LAUNCH]
    numbers = [t for t in variant.tunables if t.name in _OF_A_LAUNCH]
    for values in product(*(t.values for t in shaping)):
        config = dict(zip((t.name for t in shaping), values, strict=True))
        if config.get("cluster_size", 1) > 1 and arch in _NO_CLUSTERS:
            continue
        drawn = random.Random(f"{variant.id} {arch} {config}")
        first = tuple(drawn.choice(t.values) for t in numbers)
        for others in (first, *product(*(t.values for t in numbers))):
            whole = config | dict(zip((t.name for t in numbers), others, strict=True))
            able_to = [p for p in problems if variant.unsupported(p, whole) is None]
            if able_to:
                yield drawn.choice(able_to), whole
                break


_WHOLE = [
    pytest.param(variant, arch, id=f"{variant.id}-{arch}")
    for variant in LADDER.every()
    for arch in ARCHS
    if next(every_config(variant, arch), None) is not None
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("variant", "arch"), _WHOLE)
def test_every_config_compiles_for_every_arch(variant: Variant, arch: str) -> None:
    entries = tuple(launch.entry for launch in variant.passes)
    for problem, config in every_config(variant, arch):
        defines = variant.defines(problem, config)
        kernel = compile_kernel(
            variant.source, defines, arch + "a" * variant.arch_specific, entries
        )
        assert "warning" not in kernel.log.lower()
        used = [kernel.entries[entry] for entry in entries]
        for launch, info in zip(variant.passes, used, strict=True):
            threads = launch.threads(problem, config)
            assert 0 < info.registers_per_thread * threads <= 65536


@pytest.mark.parametrize("variant", LADDER.every(), ids=lambda v: v.id)
def test_default_config_fits_the_smallest_gpu_it_names(variant: Variant) -> None:
    """Default configs fit 64 KB per CTA on sm_75, 99 KB on sm_86 and sm_89, 227 KB on sm_90.

    On sm_75 with head_dim 96 or more it is enough that some config runs, and none with 256.
    """
    limit = 65536 if variant.min_compute_capability < (8, 0) else 101376
    if variant.arch_specific:
        limit = 232448
    for head_dim in variant.head_dims:
        direction: Direction = "backward" if variant.is_backward else "forward"
        problem = Problem(1, 1, 128, head_dim, direction=direction)
        configs = [resolve_config(variant, {}, problem, None).values]
        if head_dim > 128:
            limit = max(limit, 101376)
        elif limit == 65536 and head_dim >= 96:
            values = [tunable.values for tunable in variant.tunables]
            names = [tunable.name for tunable in variant.tunables]
            configs = [dict(zip(names, config, strict=True)) for config in product(*values)]
        sizes = [
            max(launch.dynamic_smem_bytes(problem, config) for launch in variant.passes)
            for config in configs
        ]
        assert min(sizes) <= limit
