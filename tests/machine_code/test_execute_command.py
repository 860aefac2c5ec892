"""`sass FILE --execute`: structures of parameters, tensor maps and clusters by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from words import raises, says

from engine.base.errors import InvalidProblem
from engine.cli import main
from engine.cuda_source import compile_kernel
from engine.machine_code.launch import arguments_and_memory, buffer_address

# Each CTA of a cluster of two copies a tile by its tensor map and writes its peer's tile.
SOURCE = """
struct alignas(64) Map { char bytes[128]; };
struct Parameters { Map map; float* out; const float* again; float scale; };
#define ARRIVE asm volatile("barrier.cluster.arrive.aligned;" ::: "memory")
#define WAIT asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
template <int N> __global__ void swap_tiles(const __grid_constant__ Parameters p) {
    extern __shared__ __align__(128) float s[];
    unsigned to = (unsigned)__cvta_generic_to_shared(s), bar = to + 1024;
    const int x = blockIdx.x, t = threadIdx.x;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], 1024; }"
                     :: "r"(bar) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                     ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(to), "l"(&p.map), "r"(0), "r"(8 * x), "r"(bar) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                 " @!p bra L; }" :: "r"(bar) : "memory");
    ARRIVE;
    WAIT;
    for (int i = t; i < 256; i += 32) {
        float value;
        asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %1, %2;"
                     " ld.shared::cluster.f32 %0, [a]; }" : "=f"(value)
                     : "r"(to + 4 * i), "r"(~x & 1));
        p.out[256 * x + i] = p.scale * value + p.again[256 * x + i];
    }
#ifndef LEAVES_EARLY
    ARRIVE;
    WAIT;
#endif
}
template __global__ void swap_tiles<1>(const __grid_constant__ Parameters);
"""
PARAMETERS = "struct:192;0=tensormap:f32[32,32]box[32,8];128=ptr:f32[1024];136=same:1;0x90=f32:0.5"
pytestmark = pytest.mark.usefixtures("sass_in_this_process")
LAUNCH = ("--grid", "4", "--block", "32", "--smem", "2048", "--cluster", "2")


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cubins")
    source = folder / "k.cu"
    source.write_text(SOURCE)
    made = {}
    for name, defines in {"right": (), "early": (("LEAVES_EARLY", "1"),)}.items():
        made[name] = str(folder / f"{name}.cubin")
        Path(made[name]).write_bytes(compile_kernel(source, defines, "sm_90", ()).cubin)
    return made


def execute(cubin: str, *options: str) -> int:
    return main(["sass", cubin, "--execute", "--entry", "swap_til", *options])


@pytest.mark.parametrize("swizzle", ["", "swizzle128"])
def test_a_structure_with_a_tensor_map_runs_in_clusters(
    swizzle: str, cubins: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argument = PARAMETERS.replace("box[32,8]", f"strides[128]box[32,8]{swizzle}")
    options = (*LAUNCH, "--arg", argument, "--check", "--save", str(tmp_path))
    assert execute(cubins["right"], *options) == 0
    assert says(capsys.readouterr().out, "hazard_shared_global")
    given, out = (np.fromfile(tmp_path / f"pointer_{n}.bin", np.float32) for n in (1, 2))
    tiles = given.reshape(4, 8, 32)[[1, 0, 3, 2]]
    if swizzle:  # 16-byte pieces of a row are permuted by the row's number
        rows = np.arange(8)[:, None]
        tiles = tiles.reshape(4, 8, 8, 4)[:, rows, np.arange(8) ^ rows]
    assert np.array_equal(out, np.float32(0.5) * tiles.reshape(-1) + given)


def test_hazards_and_faults_of_the_executed_file_are_found(
    cubins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*LAUNCH, "--check", "--json")
    assert execute(cubins["early"], "--arg", PARAMETERS, *options) == 1
    fault = json.loads(capsys.readouterr().out)["fault"]
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "mapa" in text)
    for part in (f"k.cu:{line}", "the shared memory of CTA 1 of its cluster, which has exited"):
        assert part in fault
    assert execute(cubins["right"], "--arg", PARAMETERS.replace("1024", "1000"), *options) == 1
    fault = json.loads(capsys.readouterr().out)["fault"]
    for part in ("STG", "byte 4000 of 'pointer 2'"):
        assert part in fault


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--cluster", "3"), "grid_cuts_clusters"),
        (("--cluster", "32"), "cluster_refused"),
        (("--smem", "300000"), "sass_shared_memory"),
        (("--arg", "struct:192;190=ptr:4"), "argument_in_structure"),
        (("--arg", "struct:192;0=same:1"), "argument_same"),
        (("--arg", "struct:192;0"), "argument_form"),
        (("--arg", "struct:192;x=ptr:4"), "argument_form"),
        (("--arg", "struct:no_such_file"), "file_failed"),
        (("--arg", "struct:192;0=tensormap:f32[8,8]strides[1,2]box[8,8]"), "tensor_map_strides"),
    ],
)
def test_an_impossible_launch_gives_a_one_sentence_error(
    options: tuple[str, str], code: str, cubins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = () if options[0] == "--arg" else ("--arg", PARAMETERS)
    assert execute(cubins["right"], *LAUNCH, *arguments, *options) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says(error, code)


def test_clusters_need_hopper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void k() {}')
    options = ("--grid", "2", "--block", "32", "--cluster", "2")
    assert main(["sass", str(source), "--arch", "sm_80", "--execute", *options]) == 2
    assert says(capsys.readouterr().err, "cluster_before_hopper")
    assert main(["sass", str(source), "--arch", "sm_90", *options]) == 2
    assert says(capsys.readouterr().err, "sass_flag_of_execution")


def test_a_structure_may_be_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.bin"
    path.write_bytes(bytes(range(24)))
    (data,), contents = arguments_and_memory([f"struct:{path};8=ptr:f16[3]; 16=i16:-1"])
    address = buffer_address(0).to_bytes(8, "little")
    assert data == bytes(range(8)) + address + b"\xff\xff" + bytes(range(18, 24))
    assert [content and content.size_bytes for content in contents] == [6]
    with raises(InvalidProblem, "argument_same", "same:2"):
        arguments_and_memory(["ptr", "same:2"])
