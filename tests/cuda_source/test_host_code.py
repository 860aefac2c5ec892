"""Host code of a `.cu` file is removed; device code and what it needs keep their lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import CompileError, InvalidBuild
from engine.cuda_on_host.build import build_kernels
from engine.cuda_source.host_code import without_host_code
from engine.cuda_source.nvrtc import compile_kernel
from engine.cuda_source.sources import read_sources
from kernels.variant import KERNELS_DIR

HOST = [
    "int main() { return 0; }",
    "void launch(float* p) { k<<<1, 32>>>(p); }",
    "template <int N>\nvoid launch(float* p) { k<N><<<1, 32>>>(p); }",
    'static inline void check(cudaError_t e, const char* f) { if (e) { printf("}"); } }',
    'extern "C" int run(float* p) { k<<<1, 1>>>(p); return 0; }',
    "void later(float* p);",
    "std::vector<at::Tensor> fwd(const at::Tensor &q) { return {q}; }",
    "std::vector<int> table = {1, 2};",
    "using torch::Tensor;",
    'PYBIND11_MODULE(NAME, m) { m.def("fwd", &fwd); }',
    "bool operator==(const A& a, const A& b) { return true; }",
    "template <class T>\n[[nodiscard]] cudaError_t launch(T* p) { return cudaMemset(p, 0, 1); }",
    "struct launch { cudaEvent_t e; launch() { cudaEventCreate(&e); } };",
    "template <class T>\nclass launch final : Base { std::vector<T> table; };",
]
DEVICE = [
    "__global__ void k(float* p) { *p = 1; }",
    "template <int N> __device__ __forceinline__ float f() { return N; }",
    "constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }",
    "#define DEVICE __device__ inline\nDEVICE float g(float x) { return x; }",
    "struct Params { int a; Params() : a(1) {} int get() const { return a; } };",
    "template <> struct Traits<half> { static constexpr int x = 1; };",
    "enum class Mode { A, B };",
    "static constexpr int N = 64;",
    "__constant__ float table[2] = {1.f, 2.f};",
    "using index_t = long long;",
    "typedef unsigned int uint;",
    'static_assert(sizeof(int) == 4, "(");',
    "KERNEL(name) { out[0] = 1; }",
    "template __global__ void k<1>(float*);",
    "__device__ int counter;",
    "struct Forward;",
    "struct P { cudaStream_t s; };",
    "struct Both { __device__ int get() { return 1; } void set() { cudaDeviceSynchronize(); } };",
    "struct Used { at::Tensor t; };\n__global__ void k(Used u) {}",
]


@pytest.mark.parametrize("code", HOST)
def test_host_code_is_left_out(code: str) -> None:
    for text in (code, f"namespace a {{\n{code}\n}}\n", f'extern "C++" {{\n{code}\n}}'):
        kept = without_host_code(f"int before;\n{text}\n__device__ int after;\n")
        assert kept.count("\n") == text.count("\n") + 3
        assert kept.splitlines()[0] == "int before;"
        assert kept.splitlines()[-1] == "__device__ int after;"
        assert not {"launch", "main", "table", "fwd", "Tensor", "run", "later"} & set(kept.split())
        assert "<<<" not in kept


@pytest.mark.parametrize("code", DEVICE)
def test_device_code_is_kept(code: str) -> None:
    for text in (code, f"namespace a {{ namespace b::c {{\n{code}\n}} }}\n"):
        mixed = f"{text}\nint main() {{ return 0; }}\n{text}\n"
        assert without_host_code(text) == text
        assert without_host_code(mixed) == mixed.replace("int main() { return 0; }", "")


def test_preprocessor_lines_of_host_code_are_kept() -> None:
    code = "int main() {\n#if X\n  f();\n#else \\\n  // more\n#endif\n}\nint y;\n"
    assert without_host_code(code) == "\n#if X\n\n#else \\\n  // more\n#endif\n\nint y;\n"


@pytest.mark.parametrize("code", ["int main() { (] }\n", "} int main() {}\n", "void f( {\n"])
def test_text_with_unbalanced_brackets_is_unchanged(code: str) -> None:
    assert without_host_code(code) == code


@pytest.mark.parametrize("path", sorted(KERNELS_DIR.glob("*.cu*")), ids=lambda p: p.name)
def test_the_ladder_has_no_host_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert without_host_code(text) == text


# In the style of headers of public kernels.
_COMMON = """\
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <curand.h>
#include <curand_kernel.h>
#include <stdio.h>
#include <vector>

template <class T>
__host__ __device__ T ceil_div(T a, T b) { return (a + b - 1) / b; }

template <class T>
cudaError_t check(cudaError_t e) { return e; }

inline void cudaCheck(cudaError_t error, const char *file, int line) {
    if (error != cudaSuccess) printf("%s:%d: %s\\n", file, line, cudaGetErrorString(error));
};
#define cudaCheck(err) (cudaCheck(err, __FILE__, __LINE__))
#define curandCheck(err) \\
    do { if ((err) != CURAND_STATUS_SUCCESS || curandTest(err)) exit(1); } while (0)

cublasHandle_t handle;
curandGenerator_t generator;
static cublasComputeType_t compute_type = CUBLAS_COMPUTE_32F;

std::vector<float> numbers(size_t n) {
    curandCheck(curandGenerateUniform(generator, nullptr, n));
    return std::vector<float>(n, 1.0f);
}

template <class T>
[[nodiscard]] cudaError_t upload(T *to, const T *from, size_t n) {
    cudaCheck(cudaMalloc(&to, n));
    return cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyHostToDevice);
}

struct Timer {
    cudaEvent_t begin, end;
    Timer() { cudaEventCreate(&begin); }
};
"""


@pytest.mark.slow
def test_a_header_beside_the_kernel_may_hold_host_code(
    cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "common.h").write_text(_COMMON)
    source = cuda_file(
        '#include "common.h"\n__global__ void k(int *p) { *p = ceil_div(*p, 2); }\n'
        "int main() { Timer timer; cudaCheck(cudaSetDevice(0)); }\n"
    )
    assert compile_kernel(source, (), "sm_89", ("k",)).symbols == {"k": "_Z1kPi"}
    assert build_kernels(source, ["k"]).entries == ("k",)


@pytest.mark.slow
def test_a_structure_of_host_and_device_may_hold_handles(cuda_file: Callable[..., Path]) -> None:
    source = cuda_file(
        "#include <cuda.h>\n"
        "struct Work { int n; cudaEvent_t done; cudaStream_t s; cudaError_t seen; CUevent e; };\n"
        "__global__ void k(Work* work) { work->n = work->seen == cudaSuccess && !work->done; }\n"
    )
    assert compile_kernel(source, (), "sm_89", ("k",)).symbols == {"k": "_Z1kP4Work"}
    assert build_kernels(source, ["k"]).entries == ("k",)


def test_headers_are_found_where_a_compiler_finds_them(
    cuda_file: Callable[..., Path], tmp_path: Path
) -> None:
    """First beside the including file, then beside the kernel, then in include folders; headers
    of one name in two places are two files."""
    for name, text in {
        "sub/a.cuh": '#include "b.cuh"\n#include <lib.h>\n',
        "sub/b.cuh": "#define INNER 1\n",
        "b.cuh": "#define OUTER 2\n",
        "include/lib.h": '#include "../b.cuh"\n#include <cstdint>\n#include <vector>\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    source = cuda_file(
        '#include "sub/a.cuh"\n#include "b.cuh"\n'
        "__global__ void k(std::int32_t* p) { *p = INNER + OUTER; }\n"
    )
    sources = read_sources(source, [tmp_path / "include"])
    assert [name for name, _ in sources.headers] == ["b.cuh", "include/lib.h", "sub/a.cuh",
                                                     "sub/b.cuh"]  # fmt: skip
    assert sources.foreign == ("cstdint", "vector")
    kernel = compile_kernel(source, (), "sm_89", ("k",), (tmp_path / "include",))
    assert kernel.symbols == {"k": "_Z1kPi"}
    with raises(CompileError, "nvrtc_error", "lib.h"):
        compile_kernel(source, (), "sm_89", ("k",))


def test_entries_by_name_expression(cuda_file: Callable[..., Path]) -> None:
    source = cuda_file(
        "namespace fa { template <int D, bool C> __global__ void fwd(float* p) { *p = D + C; } }\n"
    )
    kernel = compile_kernel(source, (), "sm_89", ("fa::fwd<64, true>", "fa::fwd<32, false>"))
    assert kernel.symbols["fa::fwd<64, true>"] == "_ZN2fa3fwdILi64ELb1EEEvPf"
    assert kernel.entries["fa::fwd<32, false>"].registers_per_thread > 0
    with raises(InvalidBuild, "entry_missing", "fa::fw<1, true>", "fwd"):
        compile_kernel(source, (), "sm_89", ("fa::fw<1, true>",))
    with raises(InvalidBuild, "entry_missing", "fa::fwd<1>", "it has fwd"):
        compile_kernel(source, (), "sm_89", ("fa::fwd<1>",))
