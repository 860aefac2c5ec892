"""Races in machine code, reported by instruction and source line; execution of any cubin; and the
difference between the outputs of machine code and host build."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from fitting import fitting_config
from planted_bugs import cases, look
from planted_bugs.compiler import COMPILER
from planted_bugs.mutation import Mutation
from slow_cases import slow_ones
from untimed import untimed
from words import says

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.backends.machine_code import MachineCodeBackend
from engine.base.errors import Status
from engine.cli import main
from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import Program
from engine.machine_code.execution import (
    ExecutionFault,
    GlobalBuffer,
    Hazard,
    execute,
    load_module,
)
from engine.machine_code.launch import Launch, buffer_address
from engine.pipeline.execute import disagreement
from kernels.ladder import LADDER

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

THREADS = 256
BARRIER = 'asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");'
SOURCE = """
#define T threadIdx.x
extern "C" __global__ void ordered(float* x) {
    __shared__ float s[256];
    s[T] = x[T];
    __syncthreads();
    x[T] = s[255 - T];
}
extern "C" __global__ void unordered(float* x) {
    __shared__ float s[256];
    s[T] = x[T];
    x[T] = s[255 - T];
}
extern "C" __global__ void once_more(float* x) {
    __shared__ float s[256];
#pragma unroll 1
    for (int n = 0; n < 3; n++) {
        s[T] = x[T] + n;
        __syncthreads();
        x[T] = s[255 - T];
    }
}
extern "C" __global__ void of_one_warp(float* x) {
    __shared__ float s[256];
    s[T] = x[T];
    __syncwarp();
    x[T] = s[T ^ 31];
}
extern "C" __global__ void by_half(float* x) {  // each half of the CTA has a barrier of its own
    __shared__ float s[256];
    s[T] = x[T];
    asm volatile("bar.sync %0, 128;" :: "r"(1 + T / 128) : "memory");
    x[T] = s[T ^ 127];
}
extern "C" __global__ void by_the_wrong_half(float* x) {
    __shared__ float s[256];
    s[T] = x[T];
    asm volatile("bar.sync %0, 128;" :: "r"(1 + T / 128) : "memory");
    x[T] = s[255 - T];
}
extern "C" __global__ void arrived_twice(float* x) {  // half of the warps complete the barrier
    __shared__ float s[256];
    s[T] = x[T];
    asm volatile("bar.arrive 1, 256; bar.sync 1, 256;" ::: "memory");
    x[T] = s[255 - T];
}
extern "C" __global__ void same_flag(float* x) {
    __shared__ int flag;
    if (T == 0) flag = 0;
    __syncthreads();
    if (T % 32 == 0) flag = 1;
    __syncthreads();
    x[T] = flag;
}
extern "C" __global__ void counted(float* x) {
    __shared__ int n;
    if (T == 0) n = 0;
    __syncthreads();
    atomicAdd(&n, 1);
    __syncthreads();
    x[T] = n;
}
extern "C" __global__ void copied(float* x) {
    __shared__ float s[256];
    unsigned to = (unsigned)__cvta_generic_to_shared(s + T);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + T) : "memory");
    asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    x[T] = s[255 - T];
}
extern "C" __global__ void copied_without_waiting(float* x) {
    __shared__ float s[256];
    unsigned to = (unsigned)__cvta_generic_to_shared(s + T);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + T) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    x[T] = s[255 - T];
}
// The last CTA adds up what all of them wrote. TOLD and HEARD are fences; a bare block is none.
#define BY_THE_LAST(NAME, TOLD, BARRIER, BY_ONE, HEARD)                        \\
    extern "C" __global__ void NAME(float* x, int* n) {                        \\
        __shared__ bool last;                                                  \\
        x[256 * blockIdx.x + T] = T;                                           \\
        TOLD;                                                                  \\
        BARRIER;                                                               \\
        if (T == 0) {                                                          \\
            BY_ONE;                                                            \\
            last = atomicAdd(n, 1) == gridDim.x - 1;                           \\
            BY_ONE;                                                            \\
        }                                                                      \\
        __syncthreads();                                                       \\
        if (!last) return;                                                     \\
        HEARD;                                                                 \\
        float sum = 0;                                                         \\
        for (int b = 0; b < gridDim.x; b++) sum += x[256 * b + 255 - T];       \\
        x[256 * gridDim.x + T] = sum;                                          \\
    }
BY_THE_LAST(fenced_by_both_sides, __threadfence(), __syncthreads(), , __threadfence())
BY_THE_LAST(by_one_thread, , __syncthreads(), __threadfence(), )
BY_THE_LAST(not_told, , __syncthreads(), , __threadfence())
BY_THE_LAST(not_heard, __threadfence(), __syncthreads(), , )
BY_THE_LAST(told_too_early, if (T == 0) __threadfence(), __syncthreads(), , __threadfence())
BY_THE_LAST(without_a_barrier, , , __threadfence(), __threadfence())
BY_THE_LAST(told_within_the_cta, __threadfence_block(), __syncthreads(), , __threadfence())
// Of two CTAs the one that comes second adds up what both wrote.
extern "C" __global__ void in_pairs(float* x, int* n) {
    const int pair = blockIdx.x / 2;
    x[32 * blockIdx.x + T] = T;
    __threadfence();
    __syncwarp();
    const int before = T == 0 ? atomicAdd(n + pair, 1) : 0;
    __threadfence();
    if (__shfl_sync(~0u, before, 0) == 0) return;
    x[32 * (gridDim.x + pair) + T] = x[64 * pair + T] + x[64 * pair + 32 + T];
}
extern "C" __global__ void overlapping(float* x, int* n) { x[255 * blockIdx.x + T] = blockIdx.x; }
extern "C" __global__ void of_the_neighbour(float* x, int* n) {
    x[256 * blockIdx.x + T] = x[(256 * blockIdx.x + T + 256) % (256 * gridDim.x)];
}
extern "C" __global__ void summed(float* x, int* n) { atomicAdd(x + T, 1.0f); }
"""
ORDERED_CTAS = ("fenced_by_both_sides", "by_one_thread", "summed")  # correctly ordered between CTAs
UNORDERED_CTAS = (
    *("not_told", "not_heard", "told_too_early", "without_a_barrier", "told_within_the_cta"),
    *("overlapping", "of_the_neighbour"),
)
RIGHT = ("ordered", "of_one_warp", "by_half", "same_flag", "counted", "copied")
WRONG = ("unordered", "once_more", "by_the_wrong_half", "arrived_twice", "copied_without_waiting")


def line_of(text: str, kernel: str) -> int:
    """Return the line of the text in the kernel of this name."""
    begin = SOURCE.index(f"void {kernel}(")
    return SOURCE.count("\n", 0, SOURCE.index(text, begin)) + 1


@pytest.fixture(scope="module")
def cubin_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hazards")
    source = folder / "k.cu"
    source.write_text(SOURCE)
    made = compile_kernel(
        source, (), "sm_80", (*RIGHT, *WRONG, *ORDERED_CTAS, *UNORDERED_CTAS, "in_pairs")
    )
    path = folder / "k.cubin"
    path.write_bytes(made.cubin)
    return path


def found_in(path: Path, kernel: str, *, lines: bool = True, ctas: int = 1) -> list[Hazard]:
    cubin = read_cubin(path.read_bytes())
    program = program_of(cubin, kernel)
    if not lines:
        program = without_lines(program)
    x = np.arange((ctas + 1) * THREADS, dtype=np.float32)
    n = np.zeros(4, np.uint8)
    pointers = [struct.pack("<Q", buffer_address(number)) for number in (0, 1)]
    module = load_module(cubin)
    hazards: list[Hazard] = []
    execute(
        program,
        module.entries[kernel],
        Launch((ctas, 1, 1), (THREADS, 1, 1), 0, tuple(pointers[: 1 + (ctas > 1)])),
        [
            GlobalBuffer("x", buffer_address(0), x.view(np.uint8)),
            GlobalBuffer("n", buffer_address(1), n),
            *module.buffers,
        ],
        hazards=hazards,
    )
    return hazards


def without_lines(program: Program) -> Program:
    plain = tuple(dataclasses.replace(i, source=()) for i in program.instructions)
    return dataclasses.replace(program, instructions=plain)


@pytest.mark.parametrize("kernel", RIGHT)
def test_ordered_accesses_are_no_hazard(cubin_file: Path, kernel: str) -> None:
    assert found_in(cubin_file, kernel) == []


def test_a_missing_barrier_is_named_by_both_instructions_and_lines(cubin_file: Path) -> None:
    read, write = sorted(found_in(cubin_file, "unordered"), key=lambda hazard: hazard.kind)
    assert (read.kind, write.kind) == ("read-after-write", "write-after-read")
    assert (read.before.opcode, read.now.opcode) == ("STS", "LDS")
    assert read.before.source[0].line == line_of("s[T] = x[T];", "unordered")
    assert read.now.source[0].line == line_of("x[T] = s[255 - T];", "unordered")
    assert f"(k.cu:{read.now.source[0].line}) of warp" in read.sentence
    assert not read.in_flight
    # Without -lineinfo, only the instructions are named.
    plain = found_in(cubin_file, "unordered", lines=False)
    assert len(plain) == 2
    assert all("k.cu" not in hazard.sentence for hazard in plain)
    assert "STS at 0x" in plain[0].sentence


def test_a_loop_that_overwrites_values_that_are_still_read_is_a_hazard(cubin_file: Path) -> None:
    found = {(h.kind, h.before.opcode, h.now.opcode) for h in found_in(cubin_file, "once_more")}
    # Which of the two is found depends on the order of warps.
    assert found
    assert found <= {("write-after-read", "LDS", "STS"), ("read-after-write", "STS", "LDS")}


@pytest.mark.parametrize("kernel", ["by_the_wrong_half", "arrived_twice"])
def test_a_barrier_of_other_threads_does_not_order(cubin_file: Path, kernel: str) -> None:
    kinds = {hazard.kind for hazard in found_in(cubin_file, kernel)}
    assert "read-after-write" in kinds


@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize(
    "use", slow_ones(3, ["x[T] = *there", "*there = T", "atomicAdd((int*)there, 1)"])
)
def test_a_cta_that_exits_while_its_cluster_uses_its_memory(
    tmp_path: Path, use: str, barrier: bool
) -> None:
    source = tmp_path / "k.cu"
    end = BARRIER if barrier else ""
    source.write_text(
        f"""
#define T threadIdx.x
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* x) {{
    __shared__ float s[32];
    s[T] = T;
    {BARRIER}
    float* there;
    unsigned other = blockIdx.x ^ 1;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(s + T), "r"(other));
    {use};
    {end}
}}"""
    )
    cubin = read_cubin(compile_kernel(source, (), "sm_90", ("k",)).cubin)
    for reverse in (False, True):
        x = np.zeros(32, np.float32)
        found: list[Hazard] = []
        arguments = (struct.pack("<Q", buffer_address(0)),)
        fault = ""
        try:
            execute(
                program_of(cubin, "k"),
                cubin.entries["k"],
                Launch((2, 1, 1), (32, 1, 1), 0, arguments),
                [GlobalBuffer("x", buffer_address(0), x.view(np.uint8))],
                cluster=(2, 1, 1),
                hazards=found,
                reverse=reverse,
            )
        except ExecutionFault as error:
            fault = str(error)
        kinds = {hazard.kind for hazard in found if not hazard.buffer}
        if barrier:
            assert (fault, kinds) == ("", set())
        else:
            assert kinds == {"exit before a peer"} or says(fault, "peer_has_exited")


def test_a_copy_without_wait_is_a_hazard(cubin_file: Path) -> None:
    hazards = found_in(cubin_file, "copied_without_waiting")
    assert {hazard.before.opcode for hazard in hazards if hazard.in_flight} == {"LDGSTS"}
    assert says(next(h for h in hazards if h.in_flight).sentence, "nothing_waited_for")


# ---- global memory, between CTAs ----


@pytest.mark.parametrize("kernel", ORDERED_CTAS)
def test_accesses_ordered_by_fences_are_no_hazard(cubin_file: Path, kernel: str) -> None:
    assert found_in(cubin_file, kernel, ctas=3) == []


def test_atomics_of_two_host_threads_order_the_accesses_of_ctas(cubin_file: Path) -> None:
    """Thousands of pairs of CTAs, so that atomics of two host threads coincide."""
    cubin = read_cubin(cubin_file.read_bytes())
    pairs = 20_000
    x = np.zeros((3 * pairs, 32), np.float32)
    n = np.zeros(pairs, np.int32)
    pointers = tuple(struct.pack("<Q", buffer_address(number)) for number in (0, 1))
    found: list[Hazard] = []
    execute(
        program_of(cubin, "in_pairs"),
        cubin.entries["in_pairs"],
        Launch((2 * pairs, 1, 1), (32, 1, 1), 0, pointers),
        [
            GlobalBuffer("x", buffer_address(0), x.view(np.uint8).reshape(-1)),
            GlobalBuffer("n", buffer_address(1), n.view(np.uint8)),
        ],
        threads=32,
        hazards=found,
    )
    assert found == []
    assert (x[2 * pairs :] == 2 * np.arange(32)).all()


@pytest.mark.parametrize("kernel", UNORDERED_CTAS)
def test_accesses_without_fences_are_a_hazard(cubin_file: Path, kernel: str) -> None:
    hazards = [h for h in found_in(cubin_file, kernel, ctas=3) if h.buffer]
    assert {h.buffer for h in hazards} == {"x"}
    first = hazards[0]
    assert first.cta_before is not None
    assert first.cta_before != first.cta
    for part in ("buffer 'x'", f"of CTA {first.cta_before[0]}, 0, 0", "k.cu:"):
        assert part in first.sentence


# ---- sass FILE --execute ----

LAUNCH = ("--grid", "1", "--block", str(THREADS), "--execute")


@pytest.mark.usefixtures("sass_in_this_process")
def test_any_cubin_is_executed_and_checked(
    cubin_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sass = ("sass", str(cubin_file), *LAUNCH, "--entry")
    assert main([*sass, "unordered", "--arg", "ptr:f32[256]", "--check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fault"] == ""
    assert {hazard["kind"] for hazard in found["hazards"]} == {
        "read-after-write",
        "write-after-read",
    }
    line = f"k.cu:{line_of('x[T] = s[255 - T];', 'unordered')}"
    assert line in found["hazards"][0]["lines"]
    assert main([*sass, "ordered", "--arg", "ptr:f32[256]", "--check"]) == 0
    assert says(capsys.readouterr().out, "hazard_shared_global")
    # Accesses out of bounds, by instruction and line.
    assert main([*sass, "ordered", "--arg", "ptr:1000", "--json"]) == 1
    fault = json.loads(capsys.readouterr().out)["fault"]
    for part in (f"k.cu:{line_of('s[T] = x[T];', 'ordered')}", "LDG", "byte 1000 of 'pointer 1'"):
        assert part in fault


@pytest.mark.usefixtures("sass_in_this_process")
@pytest.mark.parametrize(
    "wrong",
    [
        ("--arg", "ptr"),
        ("--arg", "ptr:0"),
        ("--arg", "ptr:f99[4]"),
        ("--arg", "ptr:f32[]"),
        ("--arg", "ptr:99999999999"),
        (),
        ("--arg", "ptr:4096", "--listing"),
        ("--arg", "ptr:4096", "--gpu", "T4"),  # for another arch than it was compiled for
    ],
)
def test_bad_usage_gives_a_one_sentence_error(
    wrong: tuple[str, ...],
    cubin_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sass", str(cubin_file), *LAUNCH, "--entry", "ordered", *wrong]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_only_files_are_executed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sass", "v08", "--execute"]) == 2
    assert says(capsys.readouterr().err, "sass_executes_files")
    assert main(["sass", "v08", "--gpu", "L4", "--check"]) == 2


# ---- the ladder ----

ODD = Problem(1, 2, 70, 64, causal=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_ladder_has_no_hazards(arch: str) -> None:
    for variant in LADDER:
        if variant.arch_specific and arch != "sm_90":
            continue
        plan = make_plan(variant, ODD, fitting_config(variant, ODD))
        options = RunOptions(arch=arch, check=True, repeat=False)
        result = MachineCodeBackend().run(plan, make_inputs(ODD), options)
        assert (result.status, result.reason) == (Status.PASSED, ""), variant.id


Phrase = tuple[str, ...]  # a name of tests/words.json, and the values in it
_ARRIVAL = "arrive_at_counter(tile_arrivals)"


@pytest.mark.parametrize(
    ("variant", "old", "config", "said"),
    slow_ones(
        2,
        [
            ("v08", "__syncthreads();", {}, ("no_barrier_orders",)),
            ("v10", "cp_async_wait<STAGES - 2>();", {}, ("nothing_waited_for", "writes")),
            ("v16", "wgmma_wait<0>(acc_rmem);", {"block_n": 64}, "HGMMA"),
            (
                "v17",
                "mbarrier_arrive(k_empty + stage);",
                {"block_n": 64},
                ("threads_never_arrive",),
            ),
            ("v16", "async_proxy_fence();", {"block_n": 64}, ("no_proxy_fence_between",)),
            (
                "v19",
                "tma_store_wait();",
                {"block_n": 64, "num_ctas": 2},
                ("nothing_waited_for", "reads"),
            ),
            ("v06", _ARRIVAL, {}, ("no_strong_write",)),
        ],
    ),
)
def test_removed_synchronisation_of_the_ladder_is_a_hazard(
    variant: str, old: str, config: dict[str, int], said: str | Phrase, tmp_path: Path
) -> None:
    new = "atomicAdd(tile_arrivals, 1)" if old == _ARRIVAL else ";"  # which orders nothing
    bug = Mutation(f"without {old}", (variant,), old, new, (said,), nth=0, config=config)
    with untimed() as evaluator:
        seen = look(evaluator, bug, variant, "machine code", tmp_path)
    assert seen.found
    assert seen.named, seen.text


_BY_COMPILER = [(variant, bug) for bug in COMPILER for variant in bug.variants]
_QUICKEST = next(n for n, (variant, _) in enumerate(_BY_COMPILER) if variant == "v08")


@pytest.mark.parametrize(
    ("variant", "bug"),
    [
        pytest.param(*case, marks=pytest.mark.slow if n == _QUICKEST else pytest.mark.exhaustive)
        for n, case in enumerate(_BY_COMPILER)
    ],
    ids=str,
)
def test_bugs_added_by_the_compiler_are_found_in_machine_code(
    variant: str, bug: Mutation, tmp_path: Path
) -> None:
    with untimed() as evaluator:
        code = look(evaluator, bug, variant, "machine code", tmp_path)
        host = look(evaluator, bug, variant, "check", tmp_path)
    assert code.found
    assert code.named, code.text
    assert not host.found, host.text  # or it is a bug of another table


@pytest.mark.parametrize(
    ("variant", "bug", "said"),
    slow_ones(
        2,
        [
            ("v18", "without tma_store_wait();", ("nothing_waited_for", "reads")),
            ("v18", "Q arrives without its bytes", ("nothing_waited_for",)),
            ("v13", "half of the warp in the mask", ("lanes_outside_mask",)),
            ("v14", "CTA returns while it is read", ("peer_has_exited",)),
            ("v12", "rows past the end not zero", ()),
            ("v22", "O adds to what was there", ("nan_or_infinite",)),
        ],
    ),
)
def test_a_planted_bug_is_found(variant: str, bug: str, said: Phrase, tmp_path: Path) -> None:
    mutation = next(m for v, m in cases() if v == variant and m.name == bug)
    with untimed() as evaluator:
        seen = look(evaluator, mutation, variant, "machine code", tmp_path)
    assert seen.found
    assert not said or says(seen.text, *said)


# ---- machine code and host build ----


@pytest.mark.slow
def test_differences_from_the_host_build_name_element_and_instruction() -> None:
    variant = LADDER.by_id("v02")
    problem = Problem(1, 2, 33, 32)
    plan, inputs = make_plan(variant, problem, variant.default_config()), make_inputs(problem)
    options = RunOptions(arch="sm_80", repeat=False)
    executed, host = MachineCodeBackend(), CpuBackend()
    try:
        result = executed.run(plan, inputs, options)
        assert result.out is not None
        wrong = result.out.copy()
        wrong[0, 1, 7, 5] += 1
        altered = dataclasses.replace(result, out=wrong)
        said = disagreement(host, executed, plan, inputs, options, altered)
        alike = disagreement(host, executed, plan, inputs, options, result)
    finally:
        host.close()
    assert says(said, "host_build_differs", "1 elements", "head 1, row 7, column 5")
    for part in ("STG", "v02_", ".cu:"):
        assert part in said, said
    assert says(alike, "passes_element_differs")
