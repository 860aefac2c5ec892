"""Standard headers that NVRTC replaces, and errors for libraries that Attune does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from slow_cases import one_in
from words import raises

from engine.base.errors import CompileError
from engine.cuda_on_host.build import build_kernels
from engine.cuda_source import compile_kernel

BODY = 'extern "C" __global__ void k(float* p) {{ p[0] = {}; }}\n'


@pytest.fixture(autouse=True)
def cache_dir() -> None:
    """Use the run's cache: building the CPU backend's runtime and headers takes ten seconds."""


def written(folder: Path, text: str) -> Path:
    source = folder / "names.cu"
    source.write_text(text, encoding="utf-8")
    return source


@pytest.mark.parametrize(
    "include", one_in(3, ["", "#include <cuda_runtime.h>\n", "#include <math.h>\n"], slow=2)
)
def test_names_that_nvcc_has_without_an_include(tmp_path: Path, include: str) -> None:
    sum_of_all = "lowest + NAN + M_PI + M_SQRT1_2 + INT_MAX + (uint32_t)1 + (int64_t)p[1] + (uint)2"
    text = f"{include}constexpr float lowest = -INFINITY;\n{BODY.format(sum_of_all)}"
    source = written(tmp_path, text)
    assert compile_kernel(source, (), "sm_89", ("k",)).entries
    assert build_kernels(source, ["k"]).entries == ("k",)


def test_a_source_may_have_these_names_of_its_own(tmp_path: Path) -> None:
    own = "#define INFINITY 1e30f\nusing uint = unsigned char;\n"
    source = written(tmp_path, own + BODY.format("INFINITY + (uint)3"))
    kernel = compile_kernel(source, (), "sm_89", ("k",))
    assert "redefinition" not in kernel.log
    assert not any(flag.startswith("--pre-include") for flag in kernel.flags)


def test_flt_max_needs_its_header(tmp_path: Path) -> None:
    source = written(tmp_path, BODY.format("FLT_MAX"))
    with raises(CompileError, "nvrtc_error", 'identifier "FLT_MAX" is undefined'):
        compile_kernel(source, (), "sm_89", ("k",))
    source = written(tmp_path, f"#include <cfloat>\n{BODY.format('FLT_MAX')}")
    assert compile_kernel(source, (), "sm_89", ("k",)).entries


LIBRARIES = [
    ("cub/cub.cuh", "sizeof(cub::BlockReduce<float, 32>)", "CUB"),
    ("thrust/swap.h", "0; thrust::swap(p[0], p[1])", "Thrust"),
    ("curand_kernel.h", "sizeof(curandState)", "cuRAND"),
    ("cute/tensor.hpp", "0; using namespace cute", "CUTLASS and CuTe"),
    ("cuda/barrier", "sizeof(cuda::barrier<cuda::thread_scope_block>)", "libcu++"),
]


@pytest.mark.parametrize(("header", "use", "name"), one_in(5, LIBRARIES, slow=2))
def test_an_unsupported_library_gives_one_sentence(
    tmp_path: Path, header: str, use: str, name: str
) -> None:
    source = written(tmp_path, f"#include <{header}>\n\n{BODY.format(use)}")
    with raises(CompileError, "uses_attune_does", "names.cu(3", name) as error:
        compile_kernel(source, (), "sm_89", ("k",))
    assert str(error.value).count(". ") == 0
    with raises(CompileError, "cpu_backend_lacks", "names.cu:1"):
        build_kernels(source, ["k"])


def test_unused_libraries_are_accepted(tmp_path: Path) -> None:
    includes = "".join(f"#include <{header}>\n" for header, _, _ in LIBRARIES)
    remark = '// cub::BlockReduce would do\nstatic const char* const why = "thrust::sort";\n'
    source = written(tmp_path, f"{includes}{remark}{BODY.format('1')}")
    assert compile_kernel(source, (), "sm_89", ("k",)).entries
    assert build_kernels(source, ["k"]).entries == ("k",)


def test_cooperative_groups_need_no_other_package(tmp_path: Path) -> None:
    include = "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n"
    groups = "cooperative_groups"
    warp = f"{groups}::tiled_partition<32>({groups}::this_thread_block())"
    source = written(
        tmp_path, include + BODY.format(f"{groups}::reduce({warp}, p[1], {groups}::plus<float>())")
    )
    for arch in ("sm_75", "sm_90"):
        assert compile_kernel(source, (), arch, ("k",)).entries
    assert build_kernels(source, ["k"]).entries == ("k",)


@pytest.mark.parametrize("check", one_in(2, [False, True]))
def test_an_excerpt_shows_the_line_that_is_named(tmp_path: Path, check: bool) -> None:
    text = "// one\n#include <math.h>\n" + BODY.format("unheard_of")
    source = written(tmp_path, text)
    with pytest.raises(CompileError, match=r"^names\.cu:3: ") as error:
        build_kernels(source, ["k"], [("A", "1"), ("B", "2")], check)
    excerpt = next(line for line in error.value.log.splitlines() if "|" in line)
    assert "p[0] = unheard_of" in excerpt
