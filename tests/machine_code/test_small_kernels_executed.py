"""Small kernels executed as machine code: memory, waits and copies behave as on hardware, and
faults are reported with instruction and source line."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_kernels import executed
from words import raises, says

from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.backends.machine_code import MachineCodeBackend
from engine.base.errors import InvalidProblem, Status
from engine.base.launch_arguments import PassLaunch, TensorArg
from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import NO_BARRIER, Control, Instruction, pipe_of
from engine.machine_code.execution import (
    ExecutionFault,
    ExecutionTimeout,
    GlobalBuffer,
    ReadOnlyWrite,
    execute,
    load_module,
)
from engine.machine_code.launch import Launch, buffer_address

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")


@pytest.mark.parametrize(
    "body",
    [
        "data[threadIdx.x] = 1;",
        "if (threadIdx.x == 7) data[n - 1] = 1;",
        "((int4*)data)[threadIdx.x & 7] = make_int4(1, 2, 3, 4);",
        "((char*)data)[threadIdx.x] = 1;",
        "atomicAdd(data + threadIdx.x, 1);",
        "data[32 + threadIdx.x] = atomicCAS(data, 0, 5);",
    ],
)
def test_a_write_to_a_read_only_buffer_is_refused(tmp_path: Path, body: str) -> None:
    data = np.arange(64, dtype=np.int32)
    with raises(ReadOnlyWrite, "buffer_read_only", "k.cu:3", "writes to 'data'"):
        executed(tmp_path, f"if (data[n - 1] == 63) {{ {body} }}", data=data)
    assert data.tolist() == list(range(64))


def test_more_threads_than_the_code_is_made_for_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text('extern "C" __global__ void __launch_bounds__(64) k(int* data) { *data = 1; }')
    cubin = read_cubin(compile_kernel(path, (), "sm_80", ("k",)).cubin)
    data = np.zeros(1, np.int32)
    buffer = GlobalBuffer("data", buffer_address(0), data.view(np.uint8))
    pointer = struct.pack("<Q", buffer_address(0))
    for block in ((64, 1, 1), (8, 8, 1)):
        execute(
            program_of(cubin, "k"),
            cubin.entries["k"],
            Launch((1, 1, 1), block, 0, (pointer,)),
            [buffer],
        )
    for block in ((65, 1, 1), (32, 2, 2)):
        launch = Launch((1, 1, 1), block, 0, (pointer,))
        with raises(InvalidProblem, "block_beyond_bounds"):
            execute(program_of(cubin, "k"), cubin.entries["k"], launch, [buffer])


def test_inputs_that_a_kernel_changes_are_named(tmp_path: Path) -> None:
    problem = Problem(1, 2, 40, 32)
    path = tmp_path / "tiny.cu"
    body = "int i = blockIdx.x * 64 + threadIdx.x; out[i] = q[i]; if (i == 3) v[i] = 1;"
    names = ("q", "v", "out")
    parameters = ", ".join(f"unsigned short* {name}" for name in names)
    path.write_text(f'extern "C" __global__ void k({parameters}) {{ {body} }}\n')
    grid = (problem.elements // 64, 1, 1)
    launch = PassLaunch("k", grid, 64, 0, tuple(map(TensorArg, names)))
    plan = LaunchPlan("tiny", problem, {}, path, (), (), (launch,))
    inputs = make_inputs(problem)
    before = inputs.v.copy()
    result = MachineCodeBackend().run(plan, inputs, RunOptions(arch="sm_80"))
    assert (result.status, result.changed_inputs) == (Status.PASSED, ("v",)), result.reason
    assert result.out is not None
    np.testing.assert_array_equal(result.out, inputs.q)
    np.testing.assert_array_equal(inputs.v, before)


@pytest.mark.parametrize(
    ("body", "name", "facts"),
    [
        ("data[threadIdx.x + 33] = 1;", "reaches_past_buffer",
         ["STG.E", "4 bytes", "'data'", "256"]),
        ("data[threadIdx.x] = data[(int)threadIdx.x - 1];", "reaches_before_buffer",
         ["LDG", "4 bytes before 'data'"]),
        ("*(int*)((char*)data + 2) = 1;", "address_misaligned", ["STG", "4 bytes"]),
        ("*(int*)64 = 1;", "reaches_no_buffer", ["4 bytes", "0x40"]),
        ("atomicAdd(&data[64], n);", "reaches_past_buffer", ["'data'"]),
        ("__shared__ int s[32]; s[threadIdx.x + n * 8] = 1; data[0] = s[n];", "smem_beyond_cta",
         ["STS", "128 bytes"]),
        ("if (n > 3) __trap();", "stops_by_trap", []),
        ("if (threadIdx.x < 16) return; asm volatile(\"bar.sync 1, 64;\");", "threads_never_arrive",
         []),
        ("data[0] = __dp4a(data[1], data[2], n);", "not_supported_here", ["IDP.4A.S8.S8"]),
    ],
)  # fmt: skip
def test_a_fault_names_instruction_and_line(
    tmp_path: Path, body: str, name: str, facts: list[str]
) -> None:
    with pytest.raises(ExecutionFault) as fault:
        executed(tmp_path, body)
    # The native code numbers the buffers; the number is replaced by the name afterwards.
    assert says(str(fault.value).replace("'data'", "BUFFER 0"), name)
    assert [fact for fact in facts if fact not in str(fault.value)] == []
    assert str(fault.value).startswith("k (k.cu:3): ")
    assert str(fault.value).endswith(" (CTA 0, 0, 0).")


def test_a_kernel_that_never_ends_is_stopped(tmp_path: Path) -> None:
    with raises(ExecutionTimeout, "execution_time_limit"):
        executed(tmp_path, "while (((volatile int*)data)[0] == 0) {}", timeout_s=0.5)


def test_ctas_that_wait_for_one_another_take_turns(tmp_path: Path) -> None:
    """The first CTA waits for the last one; there are more CTAs than cores."""
    body = """
    volatile int* flag = data;
    if (blockIdx.x == 0) { while (flag[1] != 1000) {} flag[2] = 7; }
    if (blockIdx.x == gridDim.x - 1) flag[1] = 1000;
    """
    assert executed(tmp_path, body, grid=24)[2] == 7


SHUFFLE = """__device__ __noinline__ int of_partner(int value) {
  return __shfl_xor_sync(0xffffffffu, value, 1);
}"""


def test_diverged_lanes_reconverge_at_a_shuffle(tmp_path: Path) -> None:
    """They reach it one after the other, from two calls of one function."""
    body = """
    int lane = threadIdx.x, got;
    if (lane % 3) got = of_partner(lane + 100);
    else got = of_partner(lane + 200);
    data[lane] = got;
    """
    partner = np.arange(32) ^ 1
    expected = partner + np.where(partner % 3, 100, 200)
    assert np.array_equal(executed(tmp_path, body, top=SHUFFLE, arch="sm_90")[:32], expected)


def test_a_shuffle_whose_mask_lacks_a_lane_that_executes_it(tmp_path: Path) -> None:
    body = "data[threadIdx.x] = threadIdx.x % 3 ? of_partner(1) : of_partner(2);"
    top = SHUFFLE.replace("0xffffffffu", "0xffffu")
    with raises(ExecutionFault, "lanes_outside_mask", "WARPSYNC"):
        executed(tmp_path, body, top=top, arch="sm_90")


def test_a_copy_without_a_wait_has_not_arrived(tmp_path: Path) -> None:
    """cp.async writes at its wait, the latest time that PTX allows."""
    body = """
    __shared__ __align__(16) int s[128];
    s[threadIdx.x] = -1;
    __syncwarp();
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x * 4]);
    if (threadIdx.x < 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(to), "l"(data + 4 * threadIdx.x));
    asm volatile("cp.async.commit_group;");
    {wait}
    __syncwarp();
    data[threadIdx.x] = s[threadIdx.x];
    """
    wait = 'asm volatile("cp.async.wait_group 0;");'
    assert executed(tmp_path, body.replace("{wait}", wait))[:32].tolist() == list(range(32))
    assert set(executed(tmp_path, body.replace("{wait}", ""))[:32].tolist()) == {-1}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_a_copy_of_fewer_bytes_fills_up_with_zeros(arch: str, width: int, tmp_path: Path) -> None:
    """Lane t copies t % (width + 1) bytes, and half of the width as a constant."""
    level = "cg" if width == 16 else "ca"
    body = f"""
    __shared__ __align__(16) unsigned char s[2][32 * 16];
    for (int i = threadIdx.x; i < 1024; i += 32) s[0][i] = 255;
    __syncwarp();
    for (int part = 0; part < 2; part++) {{
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[part][threadIdx.x * {width}]);
        const char* from = (const char*)data + threadIdx.x % 4 * {width};
        if (part) asm volatile("cp.async.{level}.shared.global [%0], [%1], {width}, {width // 2};"
                               :: "r"(to), "l"(from));
        else asm volatile("cp.async.{level}.shared.global [%0], [%1], {width}, %2;"
                          :: "r"(to), "l"(from), "r"(threadIdx.x % {width + 1}));
    }}
    asm volatile("cp.async.wait_all;");
    __syncwarp();
    bool right = true;
    for (int b = 0; b < {width}; b++) {{
        unsigned char there = threadIdx.x % 4 * {width} + b;
        unsigned char word = there % 4 ? 0 : there / 4;  // the words count up
        right &= s[0][threadIdx.x * {width} + b] == (b < threadIdx.x % {width + 1} ? word : 0);
        right &= s[1][threadIdx.x * {width} + b] == (b < {width // 2} ? word : 0);
    }}
    __syncwarp();
    data[32 + threadIdx.x] = right;
    """
    assert executed(tmp_path, body, arch=arch)[32:].tolist() == [1] * 32


def test_unwritten_memory_is_nan(tmp_path: Path) -> None:
    """Registers, local and shared memory hold nothing of an earlier launch."""
    body = """
    float never;
    asm volatile("{ .reg .f32 a; mov.f32 %0, a; }" : "=f"(never));
    float local[64];
    if (n > 64) for (int i = 0; i < 64; i++) local[i] = data[i];
    data[threadIdx.x] = never != never;
    data[32 + threadIdx.x] = local[data[n - 1 - threadIdx.x] & 63] != 0;
    """
    for arch in ("sm_80", "sm_90"):
        assert executed(tmp_path, body, arch=arch).tolist() == [1] * 64


def test_an_indirect_call_is_refused_only_when_executed(tmp_path: Path) -> None:
    top = """
    __device__ __noinline__ int one(int x) { return x + 1; }
    __device__ __noinline__ int two(int x) { return x + 2; }
    __constant__ int (*table[2])(int) = {one, two};
    """
    body = "data[threadIdx.x] = n == {number} ? table[data[1]](5) : 7;"
    assert set(executed(tmp_path, body.replace("{number}", "3"), top=top)[:32].tolist()) == {7}
    with raises(ExecutionFault, "jumps_to_register"):
        executed(tmp_path, body.replace("{number}", "64"), top=top)


def test_unordered_code_has_another_result_in_reverse_order(tmp_path: Path) -> None:
    """Two warps without a barrier between them, and two CTAs that write one word.

    With one host thread, as with two either CTA may write last.
    """
    body = """
    __shared__ int s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = 5;
    {barrier}
    if (threadIdx.x == 32) data[0] = s[n - n];
    data[1] = blockIdx.x;
    """
    with_barrier = body.replace("{barrier}", "__syncthreads();")
    for reverse in (False, True):
        found = executed(
            tmp_path, with_barrier, threads=64, grid=2, reverse=reverse, host_threads=1
        )
        assert found[0] == 5
        assert found[1] == 1 - reverse
    without = body.replace("{barrier}", "")
    assert executed(tmp_path, without, threads=64)[0] == 5
    assert executed(tmp_path, without, threads=64, reverse=True)[0] != 5


def test_variables_of_the_module_keep_their_values(tmp_path: Path) -> None:
    top = "__device__ int counter = 5, seen[4]; __constant__ int table[4] = {3, 1, 4, 1};"
    body = """
    atomicAdd(&counter, 1);
    __syncwarp();
    seen[threadIdx.x & 3] = table[threadIdx.x & 3];
    __syncwarp();
    data[threadIdx.x] = counter + 100 * seen[threadIdx.x & 3];
    """
    for arch in ("sm_75", "sm_120"):
        expected = [37 + 100 * (3, 1, 4, 1)[t & 3] for t in range(32)]
        assert executed(tmp_path, body, arch=arch, top=top)[:32].tolist() == expected


def test_float_atomics_of_several_host_threads_are_complete(tmp_path: Path) -> None:
    body = """
    float* const sums = (float*)data;
    if (blockIdx.x == 0) sums[threadIdx.x & 7] = -0.0f;
    for (int n = 0; n < 3000; n++) {
        atomicAdd(sums + 8 + (threadIdx.x & 7), 1.0f);
        if (threadIdx.x % 3) atomicAdd(sums + 16, 1.0f);
        atomicAdd(sums + 32, 1.0f);
        const float taken = threadIdx.x ? 0.0f : atomicExch(sums + 32, 0.0f);
        atomicAdd(sums + 33, taken);
    }
    if (blockIdx.x == 0) atomicAdd(sums + (threadIdx.x & 1), -1e-39f);
    """
    for arch in ("sm_80", "sm_90"):
        sums = executed(tmp_path, body, arch=arch, grid=8, host_threads=4).view(np.float32)
        assert sums[8:16].tolist() == [8 * 3000 * 4] * 8
        assert sums[16] == 8 * 3000 * 21
        assert sums[32] + sums[33] == 8 * 3000 * 32
        assert sums[:2].view(np.uint32).tolist() == [1 << 31] * 2  # denormal: -0


def test_local_memory_has_generic_addresses_too(tmp_path: Path) -> None:
    body = """
    int local[8];
    for (int i = 0; i < 8; i++) local[(i + data[1]) & 7] = i * data[3];
    int* where = data[2] == 2 ? local : data;
    data[threadIdx.x] = where[threadIdx.x & 7];
    """
    for arch in ("sm_80", "sm_90"):
        expected = [3 * ((t - 1) & 7) for t in range(32)]
        assert executed(tmp_path, body, arch=arch)[:32].tolist() == expected


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_minimum_and_maximum_with_and_without_inactive_lanes(arch: str, tmp_path: Path) -> None:
    """The emulator has separate paths for all lanes and for some of them."""
    body = (
        "const int far = threadIdx.x % 5 ? 1 : 1 << 27;\n"
        "const int x = (data[threadIdx.x] * 7919 % 19 - 9) * far;\n"
        "const int y = (data[threadIdx.x + 32] * 7919 % 17 - 8) * far;\n"
        "const unsigned u = x, v = y;\n"
        "int out = max(max(x, y), -3) ^ min(min(x, y), n);\n"
        "out = 31 * out + (int)(max(max(u, v), 5u) ^ min(min(u, v), 0xfffffff0u));\n"
        "if (threadIdx.x % 3 || n < 0) out += max(max(y, x), n) ^ (int)min(min(v, u), 77u);\n"
        "data[threadIdx.x] = out;"
    )
    lane = np.arange(32)
    far = np.where(lane % 5, 1, 2**27)
    x, y = (lane * 7919 % 19 - 9) * far, ((lane + 32) * 7919 % 17 - 8) * far
    u, v = x & 0xFFFFFFFF, y & 0xFFFFFFFF
    out = np.maximum(np.maximum(x, y), -3) ^ np.minimum(np.minimum(x, y), 64)
    out = 31 * out + (np.maximum(np.maximum(u, v), 5) ^ np.minimum(np.minimum(u, v), 0xFFFFFFF0))
    later = np.maximum(np.maximum(y, x), 64) ^ np.minimum(np.minimum(v, u), 77)
    out += np.where(lane % 3, later, 0)
    assert np.array_equal(
        executed(tmp_path, body, arch=arch)[:32].view(np.uint32),
        (out & 0xFFFFFFFF).astype(np.uint32),
    )


def mixed(x: int) -> int:
    """Return what `MIXED` computes from a word."""
    u = x * 2654435761 & 0xFFFFFFFF
    w = u << 32 | u ^ 0xFFFF
    left, right = w << (x & 63) & (1 << 64) - 1, w >> (x & 63)
    signed = u - (1 << 32) if u >> 31 else u
    total = w + left + right + (u * (u ^ 77) >> 32) + abs(signed)
    if u >> 31:
        total += 5 * (w >> 40)
    f = float("nan") if x % 5 == 0 else x - 16.0
    true = (not f < 3.0, not f > -4.0, not f <= 1.0, not f >= 7.0, f != 2.0)
    total += sum(1 << 3 * n for n, each in enumerate(true) if each)
    return (total ^ total >> 32) & 0xFFFFFFFF


MIXED = """
__device__ __noinline__ unsigned mixed(unsigned x) {
    unsigned u = x * 2654435761u;
    unsigned long long w = (unsigned long long)u << 32 | (u ^ 0xffff);
    unsigned long long total = w + (w << (x & 63)) + (w >> (x & 63)) + __umulhi(u, u ^ 77);
    total += abs((int)u);
    if (u >> 31) total += 5 * (w >> 40);
    float f = x % 5 == 0 ? __int_as_float(0x7fc00000) : (float)(int)x - 16.0f;
    total += !(f < 3.0f) + 8 * !(f > -4.0f) + 64 * !(f <= 1.0f) + 512 * !(f >= 7.0f);
    total += 4096 * (f != 2.0f);
    return (unsigned)(total ^ total >> 32);
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
@pytest.mark.parametrize("lanes", ["true", "t % 3 == 1", "t > 20", "t == 9"])
def test_inactive_lanes_keep_their_registers(arch: str, lanes: str, tmp_path: Path) -> None:
    body = f"int t = threadIdx.x; if ({lanes}) data[t] = mixed(data[t]) + 7 * data[t + 32];"
    data = executed(tmp_path, body, arch=arch, top=MIXED)
    condition = lanes.replace("true", "True")
    for t in range(32):
        takes_part = eval(condition, {"t": t})
        expected = (mixed(t) + 7 * (t + 32)) & 0xFFFFFFFF if takes_part else t
        assert int(data[t]) & 0xFFFFFFFF == expected, t
    np.testing.assert_array_equal(data[32:], np.arange(32, 64))


def instruction(opcode: str, *operands: str, predicate: str = "") -> Instruction:
    name, *modifiers = opcode.split(".")
    control = Control(0, False, NO_BARRIER, NO_BARRIER, 0, 0)
    return Instruction(0, name, tuple(modifiers), operands, predicate, control, pipe_of(name))


@pytest.mark.parametrize(
    "writes",
    [
        instruction("IADD3", "R6", "P0", "R0", "0x1", "RZ", predicate="P1"),
        instruction("LEA", "R6", "P0", "R0", "R0", "0x2", predicate="P1"),
        instruction("LOP3.LUT", "P0", "R6", "R0", "0x20", "RZ", "0xc0", "!PT", predicate="P1"),
    ],
    ids=str,
)
def test_inactive_lanes_keep_their_predicate(writes: Instruction, tmp_path: Path) -> None:
    """No compiler can be made to emit such code, so it is put between a load and a store."""
    data = np.arange(64, dtype=np.int32)
    path = tmp_path / "k.cu"
    path.write_text('extern "C" __global__ void k(int* data, int n) { data[threadIdx.x] ^= n; }')
    cubin = read_cubin(compile_kernel(path, (), "sm_75", ("k",)).cubin)
    program = program_of(cubin, "k")
    changes = next(n for n, i in enumerate(program.instructions) if i.opcode == "LOP3")
    assert str(program.instructions[changes - 1]) == "LDG.E.SYS R0, [R2]"
    assert str(program.instructions[changes + 1]) == "STG.E.SYS [R2], R5"
    middle = (
        instruction("ISETP.GT.AND", "P0", "PT", "R0", "0x10", "PT"),
        instruction("ISETP.GT.AND", "P1", "PT", "R0", "0x17", "PT"),
        writes,  # a predicate that is off in all the lanes that it runs in
        instruction("SEL", "R5", "R0", "RZ", "P0"),
    )
    before, after = program.instructions[:changes], program.instructions[changes + 1 :]
    program = replace(program, instructions=(*before, *middle, *after), cubin_sha256="")
    arguments = (struct.pack("<Q", buffer_address(0)), struct.pack("<i", 64))
    memory = [GlobalBuffer("data", buffer_address(0), data.view(np.uint8))]
    launch = Launch((1, 1, 1), (32, 1, 1), 0, arguments)
    execute(program, load_module(cubin).entries["k"], launch, memory)
    assert data[:32].tolist() == [t if 16 < t < 24 else 0 for t in range(32)]
