"""Machine code executed with values: the ladder compared with float64, and CUDA features with the
expected value of each thread."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_feature_cases import GROUPS, LANES, Group
from fitting import fitting_config, is_supported
from numpy.typing import NDArray
from slow_cases import one_in
from words import says

from engine.attention.plan import capability_reason, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends import machine_code
from engine.backends.base import RunOptions
from engine.backends.machine_code import MachineCodeBackend
from engine.base.cxx import find_toolchain, library_flags
from engine.base.errors import AttuneError, CompileError, Status, ToolMissing
from engine.cli import main
from engine.correctness import check_output
from engine.correctness.check import check_against
from engine.cuda_source import compile_kernel
from engine.devices.spec import find_device
from engine.machine_code import native_library
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.execution import (
    _SOURCE,
    GlobalBuffer,
    Watch,
    execute,
    load_module,
)
from engine.machine_code.launch import Launch, buffer_address
from engine.pipeline.execute import PartialRun
from kernels.ladder import LADDER

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

ODD = Problem(1, 2, 65, 64)
ODD_BF16 = Problem(1, 2, 70, 64, causal=True, dtype="bfloat16")
GROUPED = Problem(1, 4, 33, 64, num_heads_kv=2)
DECODE = Problem(2, 2, 1, 64, seqlen_kv=100)
RIGHT = [("v01", "sm_75", ODD), ("v08", "sm_89", ODD_BF16), ("v16", "sm_90", GROUPED)]


def table() -> list[tuple[str, str, Problem]]:
    """Return every rung of the forward pass on every arch that it compiles for, in both types:
    causal, with an odd length and, where the rung supports it, GQA."""
    rows = []
    for gpu in ("T4", "A100 80GB SXM", "L4", "H200", "RTX 5090"):
        device = find_device(gpu)
        for variant in LADDER:
            for dtype in variant.dtypes:
                if capability_reason(variant, dtype, device) is not None:
                    continue
                full = Problem(1, 4, 70, 64, num_heads_kv=2, causal=True, dtype=dtype)
                candidates = (full, replace(full, num_heads_kv=None))
                problem = next(c for c in candidates if is_supported(variant, c))
                rows.append((variant.id, device.arch, problem))
    return rows


TABLE = [*table(), *(("v14", arch, DECODE) for arch in ("sm_75", "sm_120"))]


@pytest.mark.parametrize(
    ("variant", "arch", "problem"),
    [*RIGHT, *one_in(len(TABLE) + 1, TABLE, offset=len(TABLE), slow=28)],
    ids=str,
)
def test_machine_code_of_a_rung_is_correct(variant: str, arch: str, problem: Problem) -> None:
    kernel = LADDER.by_id(variant)
    plan, inputs = make_plan(kernel, problem, fitting_config(kernel, problem)), make_inputs(problem)
    result = MachineCodeBackend().run(plan, inputs, RunOptions(arch=arch))
    assert (result.status, result.reason) == (Status.PASSED, "")
    correctness = check_output(inputs, result, plan=plan)
    assert correctness.passed, correctness.reason
    assert result.repeatable
    assert result.inputs_unchanged


@pytest.mark.parametrize(
    ("variant", "arch", "problem"),
    [
        ("v01", "sm_75", ODD),
        ("v08", "sm_89", ODD_BF16),
        pytest.param("v11", "sm_80", ODD, marks=pytest.mark.slow),
        pytest.param("v13", "sm_120", ODD_BF16, marks=pytest.mark.slow),
        pytest.param("v15", "sm_90", ODD, marks=pytest.mark.slow),
        pytest.param("v20", "sm_90", ODD_BF16, marks=pytest.mark.slow),
        pytest.param("v21", "sm_90", DECODE, marks=pytest.mark.slow),
    ],
)
def test_fast_paths_give_the_bits_of_the_general_path(
    variant: str, arch: str, problem: Problem
) -> None:
    """With a watched element, every instruction takes the general path."""
    kernel = LADDER.by_id(variant)
    plan, inputs = make_plan(kernel, problem, fitting_config(kernel, problem)), make_inputs(problem)
    out: list[NDArray[np.uint8]] = []
    for watch in (None, Watch(0, [])):
        memory = machine_code.memory_of(plan, inputs)
        compiled, cubin, module = machine_code.loaded(plan, RunOptions(arch=arch))
        options = RunOptions(arch=arch)
        machine_code.execute_plan(plan, compiled, cubin, module, memory, options, None, watch)
        out.append(memory["out"])
    assert np.array_equal(*out)


@pytest.mark.parametrize(
    ("word", "writes", "repeatable"), [(None, True, True), (7, True, False), (None, False, False)]
)
def test_the_second_run_of_a_large_launch_covers_some_ctas(
    word: int | None, writes: bool, repeatable: bool
) -> None:
    """1 of 16 CTAs is executed again; only a difference in a word of theirs is found."""
    chosen: list[list[int] | None] = []
    right = machine_code.execute_plan

    def execute(plan: Any, *args: Any, ctas: Any = None, **options: Any) -> None:
        chosen.append(ctas)
        if ctas is None or writes:
            right(plan, *args, ctas=ctas, **options)
        if ctas is None and word is not None:  # change the first word of every tile of 64 rows
            args[3]["out"].view(np.uint16).reshape(-1, 64 * 64)[:, word] ^= 1

    kernel, problem = LADDER.by_id("v08"), Problem(2, 4, 128, 64)
    plan = make_plan(kernel, problem, {"block_n": 64, "num_warps": 4})
    backend = MachineCodeBackend(whole_repeat_flops=0, execute=execute)
    result = backend.run(plan, make_inputs(problem), RunOptions(arch="sm_89"))
    assert (result.status, result.repeatable) == (Status.PASSED, repeatable)
    assert chosen[0] is None
    assert chosen[1] is not None
    assert len(chosen[1]) == 1
    assert says(result.repeated, "of_of_the", "1", "16")


@pytest.mark.exhaustive  # the library's compile alone takes a minute
@pytest.mark.parametrize("flag", ["-mno-avx512f", "-march=x86-64"])
def test_other_processors_compute_the_same_bits(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled without AVX-512, and without AVX2."""
    toolchain, library = find_toolchain(), tmp_path / "execute.so"
    command = [*toolchain.command, *library_flags(toolchain), flag, "-shared", str(_SOURCE)]
    subprocess.run([*command, "-o", str(library)], check=True)

    def outputs() -> list[NDArray[np.uint16]]:
        found = []
        for variant, arch, problem in (("v08", "sm_89", ODD_BF16), ("v15", "sm_90", ODD)):
            kernel = LADDER.by_id(variant)
            plan = make_plan(kernel, problem, fitting_config(kernel, problem))
            result = MachineCodeBackend().run(plan, make_inputs(problem), RunOptions(arch=arch))
            assert result.out is not None, result.reason
            found.append(result.out.view(np.uint16))
        return found

    here = outputs()
    monkeypatch.setitem(native_library._loaded, _SOURCE, ctypes.CDLL(str(library)))
    for one, other in zip(here, outputs(), strict=True):
        np.testing.assert_array_equal(one, other)


PART = Problem(3, 4, 200, 64, num_heads_kv=2)


@pytest.mark.parametrize(
    "variant", ["v08", *(pytest.param(v, marks=pytest.mark.slow) for v in ("v11", "v17"))]
)
def test_some_ctas_are_executed_ahead(variant: str) -> None:
    kernel = LADDER.by_id(variant)
    plan = make_plan(kernel, PART, fitting_config(kernel, PART))
    options = RunOptions(arch="sm_90", repeat=False)
    run = PartialRun.choose(MachineCodeBackend(), plan, options, 1e7)
    assert isinstance(run, PartialRun)
    assert run.part.ctas < run.part.total_ctas
    assert run.part.pairs[-1] == (2, 3)
    prepared = run.prepare(0, "normal")
    result = run.run(prepared.inputs)
    assert result.status is Status.PASSED, result.reason
    assert check_against(prepared.expected.result(), result)[0].passed


def test_a_partial_execution_is_checked(tmp_path: Path) -> None:
    kernel = LADDER.by_id("v08")
    source = tmp_path / kernel.source.name
    for header in kernel.source.parent.glob("*.cuh"):
        (tmp_path / header.name).write_text(header.read_text())
    text, right = kernel.source.read_text(), "softmax_scale * LOG2_E"
    assert right in text
    source.write_text(text.replace(right, f"1.25f * {right}"))
    plan = replace(make_plan(kernel, PART, fitting_config(kernel, PART)), source=source)
    run = PartialRun.choose(MachineCodeBackend(), plan, RunOptions(arch="sm_89"), 1e7)
    assert isinstance(run, PartialRun)
    prepared = run.prepare(0, "normal")
    result = run.run(prepared.inputs)
    assert not check_against(prepared.expected.result(), result)[0].passed


def test_ctas_of_a_cluster_share_memory() -> None:
    """v14's CTAs read one another's shared memory where a cluster fuses the splits."""
    config = LADDER.by_id("v14").default_config() | {"num_splits": 4, "cluster_size": 4}
    plan, inputs = make_plan(LADDER.by_id("v14"), DECODE, config), make_inputs(DECODE)
    assert plan.passes[0].cluster != (1, 1, 1)
    result = MachineCodeBackend().run(plan, inputs, RunOptions(arch="sm_90"))
    assert result.status is Status.PASSED, result.reason
    assert check_output(inputs, result, plan=plan).passed


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_two_ctas_of_a_cluster_load_each_others_keys(causal: bool) -> None:
    """v19's pairs by multicast, the last of an odd number of query tiles among them."""
    problem = Problem(1, 4, 300, 64, causal, "bfloat16", num_heads_kv=2)
    chosen = {"cluster_size": 2, "num_ctas": 4, "block_n": 64}
    plan = make_plan(LADDER.by_id("v19"), problem, LADDER.by_id("v19").default_config() | chosen)
    assert plan.passes[0].cluster == (2, 1, 1)
    inputs = make_inputs(problem)
    result = MachineCodeBackend().run(plan, inputs, RunOptions(arch="sm_90", check=True))
    assert result.status is Status.PASSED, result.reason
    assert check_output(inputs, result, plan=plan).passed


@pytest.mark.slow
def test_executed_machine_code_gives_no_latency(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", "v08", "-S", "65", "-H", "2", "-D", "32", "--gpu", "L4", "--json"]
    assert main([*argv, "--backend", "machine-code"]) == 0
    text = capsys.readouterr().out
    assert '"backend": "machine-code"' in text
    assert '"measured"' not in text


# ---- features ----

# Features whose machine code is not executed on some arch: an error, never a wrong value.
NOT_EXECUTED = {
    "__mulhi __umul64hi __mul24 __sad __byte_perm __funnelshift_l __dp4a",  # IDP
    "__fadd_rz … __fsqrt_rd, __dadd_ru, __fmaf_rn",  # doubles rounded in a direction
    "malloc and free in a kernel",  # the driver's
    "wmma 16x16x8 of wmma::precision::tf32",
    "wmma 16x16x16 of signed char",
    "wmma 8x8x4 of double",
    # On Hopper and Blackwell: conversions of bfloat16 and of 8 bits, vector atomics that
    # shared memory does not have
    "hceil hfloor htrunc hrint",
    "implicit conversions from and to numbers",
    "__float2bfloat16 _rn _rz, __bfloat162int, __floats2bfloat162_rn",
    "half ↔ bfloat16",
    "__nv_fp8_e4m3, __nv_fp8_e5m2",
    "__nv_fp8_e8m0",
    "x2 and x4",
    "__nv_cvt_float_to_fp8, __nv_cvt_fp8_to_halfraw",
    "atomicAdd of int, unsigned, 64 bits, float, double, float2, float4",
    "min and max of mixed types",
    "this_grid().sync(), as many CTAs as fit at once",  # the driver gives it its workspace
}
_HALVES = [group.name.split(",")[0] for group in GROUPS].index("half")


def _marks(group: int, arch: str) -> list[pytest.MarkDecorator]:
    if (group, arch) == (_HALVES, "sm_75"):
        return []
    turn = "sm_90" if group % 2 or GROUPS[group].ctas > 1 else "sm_80"
    return [pytest.mark.slow if arch == turn else pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("group", "arch"),
    [
        pytest.param(
            group,
            arch,
            id=f"{group.name}-{arch}",
            marks=_marks(n, arch),
        )
        for n, group in enumerate(GROUPS)
        for arch in ("sm_75", "sm_80", "sm_90", "sm_120")
    ],
)
def test_a_feature_is_correct_or_refused(group: Group, arch: str, tmp_path: Path) -> None:
    if group.ctas > 1 and int(arch[3:]) < 90:
        pytest.skip("a cluster needs sm_90")
    for name, answer in answers(group, list(group.features), arch, tmp_path).items():
        if isinstance(answer, str):
            assert name in NOT_EXECUTED, f"{name}: {answer}"
            refusals = ("not_supported_here", "stops_by_trap")
            assert any(says(answer, refusal) for refusal in refusals), answer
        else:
            assert group._difference(answer, group.features[name][1]) == "", name


def answers(
    group: Group, names: list[str], arch: str, folder: Path
) -> dict[str, NDArray[np.float32] | str]:
    """Return what each feature computes, or why it is not executed; features that do not
    compile are left out."""
    path = folder / "features.cu"
    path.write_text(group.source(names))
    entries = tuple(f"f{i}" for i in range(len(names)))
    try:
        cubin = read_cubin(compile_kernel(path, (), arch, entries).cubin)
    except (CompileError, ToolMissing):  # cooperative groups need another package
        if len(names) == 1:
            return {}
        alone = (answers(group, [name], arch, folder) for name in names)
        return {name: answer for each in alone for name, answer in each.items()}
    found: dict[str, NDArray[np.float32] | str] = {}
    for name, entry in zip(names, entries, strict=True):
        module = load_module(cubin)
        out = np.full(LANES, np.nan, np.float32)
        pointer = struct.pack("<Q", buffer_address(0))
        try:
            execute(
                program_of(cubin, entry),
                module.entries[entry],
                Launch((group.ctas, 1, 1), (LANES, 1, 1), 4096, (pointer,)),
                [GlobalBuffer("out", buffer_address(0), out.view(np.uint8)), *module.buffers],
                cluster=(group.ctas, 1, 1),
            )
            found[name] = out
        except AttuneError as error:
            found[name] = str(error)
    return found
