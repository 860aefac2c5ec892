"""Small kernels of Hopper executed as machine code: mbarriers, clusters, multicast, wgmma."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from small_kernels import executed
from words import raises

from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.execution import (
    ExecutionTimeout,
    GlobalBuffer,
    Hazard,
    execute,
)
from engine.machine_code.launch import Launch, buffer_address, parse_arguments

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")


@pytest.mark.timeout(60)
def test_a_cluster_that_never_ends_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(volatile int* data) {
    while (data[0] == 0) data[1] += 1;
}"""
    )
    cubin = read_cubin(compile_kernel(path, (), "sm_90", ("k",)).cubin)
    data = np.zeros(64, np.int32)
    with raises(ExecutionTimeout, "execution_time_limit"):
        execute(
            program_of(cubin, "k"),
            cubin.entries["k"],
            Launch((2, 1, 1), (32, 1, 1), 0, (struct.pack("<Q", buffer_address(0)),)),
            [GlobalBuffer("data", buffer_address(0), data.view(np.uint8))],
            cluster=(2, 1, 1),
            timeout_s=0.5,
        )


def test_an_mbarrier_waits_for_expected_bytes(tmp_path: Path) -> None:
    """expect_tx and complete_tx do not count as arrivals."""
    test = """{
        int done;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;"
                     " selp.s32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
        data[PLACE + threadIdx.x] = done;
        __syncwarp();
    }"""
    body = f"""
    __shared__ __align__(8) unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    const bool first = threadIdx.x == 0;
    if (first) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
    __syncwarp();
    if (first) {{
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                     :: "r"(at), "r"(n) : "memory");
        asm volatile("{{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }}"
                     :: "r"(at) : "memory");
    }}
    __syncwarp();
    {test.replace("PLACE", "0")}
    if (first)
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                     :: "r"(at), "r"(n) : "memory");
    __syncwarp();
    {test.replace("PLACE", "32")}
    """
    for arch in ("sm_90", "sm_120"):
        assert executed(tmp_path, body, arch=arch).tolist() == [0] * 32 + [1] * 32


def test_each_lane_arrives_at_its_own_mbarrier(tmp_path: Path) -> None:
    body = """
    __shared__ __align__(8) unsigned long long bars[4];
    unsigned at = (unsigned)__cvta_generic_to_shared(&bars[threadIdx.x / 8]);
    if (threadIdx.x % 8 == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                     :: "r"(at), "r"(5 + (threadIdx.x == 24)) : "memory");
    __syncwarp();
    if (threadIdx.x % 8 < 5)
        asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }"
                     :: "r"(at) : "memory");
    __syncwarp();
    for (int b = 0; b < 4; b++) {
        int done;
        unsigned of = (unsigned)__cvta_generic_to_shared(&bars[b]);
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;"
                     " selp.s32 %0, 1, 0, p; }" : "=r"(done) : "r"(of) : "memory");
        data[b] = done;
    }
    """
    assert executed(tmp_path, body, arch="sm_90")[:4].tolist() == [1, 1, 1, 0]


def test_a_clusters_barrier_waits_for_no_warp_that_has_exited(tmp_path: Path) -> None:
    """The second warp exits while the first one waits."""
    path = tmp_path / "k.cu"
    path.write_text(
        """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* data) {
    if (threadIdx.x / 32 == 1) return;
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
    data[blockIdx.x * 64 + threadIdx.x] = 7;
}"""
    )
    cubin = read_cubin(compile_kernel(path, (), "sm_90", ("k",)).cubin)
    data = np.zeros((4, 32), np.int32)
    execute(
        program_of(cubin, "k"),
        cubin.entries["k"],
        Launch((2, 1, 1), (64, 1, 1), 0, (struct.pack("<Q", buffer_address(0)),)),
        [GlobalBuffer("data", buffer_address(0), data.reshape(-1).view(np.uint8))],
        cluster=(2, 1, 1),
    )
    assert data[:, 0].tolist() == [7, 0, 7, 0]
    assert np.ptp(data, axis=1).tolist() == [0] * 4


@pytest.mark.parametrize("mask", [1, 2, 3])
def test_a_multicast_copies_its_tile_to_the_ctas_of_its_mask(mask: int, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        """
struct alignas(64) Map { char bytes[128]; };
#define CLUSTER asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory")
extern "C" __global__ void __cluster_dims__(2, 1, 1)
k(const __grid_constant__ Map map, int* out, int mask) {
    extern __shared__ __align__(128) int s[];
    unsigned to = (unsigned)__cvta_generic_to_shared(s), bar = to + 1024;
    const bool first = threadIdx.x == 0, takes = mask >> blockIdx.x & 1;
    if (first) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    CLUSTER;
    if (first && takes)
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], 1024; }"
                     :: "r"(bar) : "memory");
    if (first && blockIdx.x == 0)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                     ".mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%2, %2}], [%3], %4;"
                     :: "r"(to), "l"(&map), "r"(0), "r"(bar), "h"((short)mask) : "memory");
    if (takes) {
        asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                     " @!p bra L; }" :: "r"(bar) : "memory");
        for (int i = threadIdx.x; i < 256; i += 32) out[256 * blockIdx.x + i] = s[i];
    }
    CLUSTER;
}"""
    )
    cubin = read_cubin(compile_kernel(path, (), "sm_90a", ("k",)).cubin)
    given = np.arange(256, dtype=np.int32)
    out = np.zeros((2, 256), np.int32)
    found: list[Hazard] = []
    execute(
        program_of(cubin, "k"),
        cubin.entries["k"],
        Launch(
            (2, 1, 1),
            (32, 1, 1),
            2048,
            parse_arguments(["tensormap:f16[64,8]box[64,8]", "ptr", f"i32:{mask}"]),
        ),
        [
            GlobalBuffer("tensor", buffer_address(0), given.view(np.uint8)),
            GlobalBuffer("out", buffer_address(1), out.reshape(-1).view(np.uint8)),
        ],
        cluster=(2, 1, 1),
        hazards=found,
    )
    assert found == []
    for rank in range(2):
        assert out[rank].tolist() == (given.tolist() if mask >> rank & 1 else [0] * 256)


WARPGROUP = """
__device__ void multiply(unsigned long long b, float (&d)[4]) {
    asm volatile("fence.proxy.async;");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%5, %5, %5, %5}, "
        "%4, p, 1, 1, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(b), "r"(0x3c003c00));
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
"""
SHARED_WRITES = {
    "by a warp": "if (t < 32) ((volatile unsigned*)place)[t % 4] = one;",
    "by a lane": "if (t == 0) *(uint4*)place = make_uint4(one, one, one, one);",
    "at a generic address": (
        'if (t == 0) asm volatile("st.v4.u32 [%0], {%1, %1, %1, %1};" '
        ':: "l"(n ? place : (char*)data), "r"(one) : "memory");'
    ),
    "by atomics": "if (t < 4) atomicExch((unsigned*)place + t, one);",
    "by cp.async": (
        'data[60 + t % 4] = one; __syncthreads(); if (t == 0) asm volatile("cp.async.cg.shared.'
        'global [%0], [%1], 16; cp.async.wait_all;" :: "r"(at), "l"(data + 60) : "memory");'
    ),
    "by stmatrix": (
        'if (t < 32) asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" '
        ':: "r"(at), "r"(one) : "memory");'
    ),
}


@pytest.mark.parametrize("way", SHARED_WRITES)
def test_wgmma_reads_values_stored_since_the_previous_one(way: str, tmp_path: Path) -> None:
    """Eight ones at K 0 to 7 of column 1, at their swizzled address, replace zeros."""
    body = f"""
    __shared__ __align__(1024) unsigned s[256];
    const int t = threadIdx.x; const unsigned one = 0x3c003c00;
    for (int k = t; k < 256; k += 128) s[k] = 0;
    __syncthreads();
    char* const place = (char*)s + 144;
    const unsigned at = (unsigned)__cvta_generic_to_shared(place);
    const unsigned long long b = at - 144 >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    float before[4] = {{}}, after[4] = {{}};
    multiply(b, before);
    __syncthreads();
    {SHARED_WRITES[way]}
    __syncthreads();
    multiply(b, after);
    if (t % 32 == 0)
        for (int k = 0; k < 4; k++) data[t / 4 + k] = before[k], data[t / 4 + 4 + k] = after[k];"""
    data = executed(tmp_path, body, arch="sm_90a", threads=128, top=WARPGROUP)
    assert data[:32].tolist() == 4 * [0, 0, 0, 0, 0, 8, 0, 8]
