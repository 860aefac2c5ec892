"""Declarations read from sources, descriptions drafted from them, and their explanation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from untimed import untimed
from words import raises, says

from engine.attention.config import VARIABLE
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidKernel, Status
from engine.base.launch_arguments import ScalarArg
from engine.cuda_source.sources import without_descriptions
from engine.own_kernels.draft import Draft, draft_of
from engine.own_kernels.host_launch import fields_of, kernels_of
from engine.own_kernels.registry import check_kernel, kernel_named
from engine.pipeline.request import EvaluationRequest
from engine.pipeline.trial import described, explain, why_arguments_differ, write_description
from kernels.source_text import has_block

DATA = Path(__file__).with_name("kernels")
PROBLEM = Problem(2, 8, 128, 64)


def source(name: str) -> str:
    """Return a kernel's text without its description."""
    return without_descriptions((DATA / f"{name}.cu").read_text(encoding="utf-8"))


def draft(code: str) -> Draft:
    return draft_of(code, kernels_of(code)[0])


def test_kernels_are_found_with_templates_namespaces_and_launch_bounds() -> None:
    (kernel,) = kernels_of(source("fa2_params"))
    assert kernel.name == "flash::flash_fwd_kernel"
    assert [p.name for p in kernel.template] == ["Traits", "Element", "Is_causal"]
    assert [(p.type, p.name) for p in kernel.parameters] == [("Flash_fwd_params", "params")]
    assert [k.name for k in kernels_of(source("split_decode"))] == ["decode_split", "decode_merge"]
    fields = fields_of(source("fa2_params"), "Flash_fwd_params")
    assert [f.name for f in fields][:6] == [
        "q_ptr", "k_ptr", "v_ptr", "o_ptr", "softmax_lse_ptr", "q_batch_stride"
    ]  # fmt: skip
    assert (fields[5].type, fields[-1].name, fields[-1].type) == ("int64_t", "is_causal", "bool")
    assert kernels_of("__global__ void declared(int a);\n// __global__ void commented() {}\n") == ()


@pytest.mark.parametrize("name", ["naive_flash", "fa2_params", "split_decode", "flash_split"])
def test_every_guess_is_a_description_or_gives_one_message(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.cu"
    path.write_text(source(name), encoding="utf-8")
    with pytest.raises(InvalidKernel) as caught:
        check_kernel(path)
    path.write_text(caught.value.block + source(name), encoding="utf-8")
    if name == "flash_split":  # its second pass cannot be guessed
        assert says(caught.value.block, "not_in_here")
        with raises(InvalidKernel, "argument_not_taken", "`out`"):
            check_kernel(path)
    else:
        assert check_kernel(path).id == name


def test_a_structure_of_strides_is_guessed() -> None:
    args = draft(source("flash_split")).args
    assert '{name = "row", ctype = "int64", value = "k_stride_row"}' in args
    assert 'ctype = "int32", value = "num_heads // num_heads_kv"' in args


def test_guessed_descriptions() -> None:
    naive = draft(source("naive_flash"))
    assert naive.entry == "flash_attn_fwd"
    assert naive.grid == ("ceil_div(seqlen, 32)", "batch * num_heads", "1")
    assert (naive.threads, naive.head_dims) == ("32", (32, 64, 128))
    assert [line.partition(",  #")[0] for line in naive.args.splitlines()] == [
        '"q"', '"k"', '"v"', '"seqlen"', '"head_dim"', '"softmax_scale"',
        '{name = "causal", ctype = "bool", value = "causal"}', '"out"', '"lse"',
    ]  # fmt: skip
    triton_like = draft(
        "template <typename T, int BLOCK_M, int kHeadDim, bool IS_CAUSAL>\n"
        "__global__ void __launch_bounds__(256) fwd(const T* Qp, const T* key, const T* value,\n"
        "    T* out_ptr, int stride_qz, int stride_qh, long stride_vn, size_t n_heads, float\n"
        "    sm_scale_log2, unsigned int* counter, const float* alibi, int mystery) {\n"
        "  int off_hz = blockIdx.y; int start_m = blockIdx.x; }\n"
    )
    assert triton_like.entry == "fwd<{element_type}, 64, {head_dim}, {causal}>"
    assert (triton_like.threads, triton_like.dtypes) == ("256", ("float16", "bfloat16"))
    assert triton_like.causal == (False, True)
    assert not triton_like.keeps_macros
    assert '"num_heads"' in triton_like.args
    assert '"softmax_scale_log2"' in triton_like.args
    assert '{name = "mystery", ctype = "int32", value = 0}' in triton_like.args
    assert triton_like.scratch.startswith('counter = {dtype = "uint32"')
    assert "0},  # check: int mystery" in triton_like.args
    assert 'entry = "fwd<{element_type}, 64, {head_dim}, {causal}>"  # check' in triton_like.toml()


def test_a_file_without_a_kernel_gives_a_message(tmp_path: Path) -> None:
    path = tmp_path / "helpers.cu"
    path.write_text("__device__ int twice(int x) { return 2 * x; }\n", encoding="utf-8")
    with raises(InvalidKernel, "no_kernel_in_file", "helpers.cu"):
        check_kernel(path)


def test_fp8_tensors_are_refused_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "fp8.cu"
    path.write_text("__global__ void k(const __nv_fp8_e4m3* q, half* out) {}\n", encoding="utf-8")
    with raises(InvalidKernel, "fp8_inputs", "__nv_fp8_e4m3"):
        check_kernel(path)


FLOAT = """
__global__ void rows(const float* Q, const float* K, const float* V, float* O, int B, int H, int S,
                     float scale) { extern __shared__ float shared[]; }
int main() {
    const int B = 2, H = 4, S = 256, D = 64;
    const int warps = 8;
    float *dQ, *dK, *dV, *dO;
    dim3 block(32, warps);
    rows<<<(B * H * S + warps - 1) / warps, block, warps * D * sizeof(float)>>>(
        dQ, dK, dV, dO, B, H, S, 1.0f / sqrtf(D));
}
"""


def test_sizes_in_the_files_own_test_become_its_problems() -> None:
    rows = draft(FLOAT)
    assert rows.grid == ("(batch * num_heads * seqlen + 8 - 1) // 8", "1", "1")
    assert (rows.threads, rows.smem_bytes) == ("[32, 8]", "8 * head_dim * 4")
    assert rows.dtypes == ("float32",)


MINIMAL = """
__global__ void forward(const float* Q, const float* K, const float* V, const int N, const int d,
                        const int Tc, const int Bc, float* l, float* m, float* O) {
    extern __shared__ float sram[];
    O[threadIdx.x] = l[0] * O[threadIdx.x] + V[0];
}
torch::Tensor run(torch::Tensor Q, torch::Tensor K, torch::Tensor V) {
    const int Bc = 16;
    const int B = Q.size(0); const int nh = Q.size(1);
    const int N = Q.size(2); const int d = Q.size(3);
    const int Tc = ceil((float) N / Bc);
    auto O = torch::zeros_like(Q);
    auto l = torch::zeros({B, nh, N});
    auto m = torch::full({B, nh, N}, -INFINITY);
    forward<<<dim3(B, nh), dim3(Bc), 3 * Bc * d * sizeof(float)>>>(
        Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(), N, d, Tc, Bc,
        l.data_ptr<float>(), m.data_ptr<float>(), O.data_ptr<float>());
}
"""


def test_arguments_and_fills_of_host_code_are_read() -> None:
    guess = draft(MINIMAL)
    assert guess.grid == ("batch", "num_heads", "1")
    assert '{name = "Tc", ctype = "int32", value = "ceil_div(seqlen, 16)"}' in guess.args
    assert '{name = "Bc", ctype = "int32", value = 16}' in guess.args
    of_sum, of_maximum = guess.scratch.splitlines()
    assert 'shape = ["batch * num_heads * seqlen"], fill = "zero", each_launch = true}' in of_sum
    assert of_maximum.startswith('m_buffer = {dtype = "float32"')
    assert 'fill = "-inf"}' in of_maximum
    assert 'out_fill = "zero"  # check' in guess.toml()


OF_ARGUMENTS = """
template <typename scalar_t>
__global__ void attend(const scalar_t* q, const scalar_t* k, const scalar_t* v, scalar_t* out,
                       int seqlen, int keys) {
    extern __shared__ float scores[];
}
torch::Tensor forward(torch::Tensor query, torch::Tensor key, torch::Tensor value) {
    auto out = torch::empty_like(query);
    const size_t bytes = SHARED;
    attend<scalar_t><<<dim3(query.size(2), query.size(0) * query.size(1)), 128, bytes>>>(
        query.data_ptr<scalar_t>(), key.data_ptr<scalar_t>(), value.data_ptr<scalar_t>(),
        out.data_ptr<scalar_t>(), query.size(-2), key.size(2));
}
"""


@pytest.mark.parametrize(
    ("written", "bytes_", "layout"),
    [
        ("key.size(2)*sizeof(float)", "seqlen_kv * 4", "bhsd"),
        ("(key.size(-2) + query.size(3)) * sizeof(float)", "(seqlen_kv + head_dim) * 4", "bhsd"),
        ("sizeof(float) * key.sizes()[1]", "4 * seqlen_kv", "bshd"),
    ],
)
def test_shared_memory_by_the_sizes_of_the_launchers_tensors(
    written: str, bytes_: str, layout: str
) -> None:
    text = OF_ARGUMENTS.replace("SHARED", written)
    if layout == "bshd":
        text = "// q is (batch, seqlen, heads, dim)\n" + text
    guess = draft(text)
    assert guess.smem_bytes == bytes_
    if layout == "bhsd":
        assert guess.grid == ("seqlen", "batch * num_heads", "1")
        assert 'value = "seqlen_kv"' in guess.args


def test_a_tensor_that_may_have_three_axes_is_not_guessed_at() -> None:
    text = OF_ARGUMENTS.replace(
        "SHARED", "key.size(2) * sizeof(float) * (key.size(0) > key.size(1))"
    )
    assert draft(text).smem_bytes == "49152"  # the default


PACKED = """
// input is (B, T, 3C), masked: autoregressive
__global__ void qk(float* preatt, float* inp, int B, int T, int C, int NH) {}
__global__ void pv(float* out, float* preatt, float* inp, int B, int T, int C, int NH) {}
void forward(float* out, float* preatt, float* inp, int B, int T, int C, int NH, int block_size) {
    qk<<<B * T, block_size>>>(preatt, inp, B, T, C, NH);
    pv<<<B * T, block_size>>>(out, preatt, inp, B, T, C, NH);
}
int main() { CHECK(cudaMalloc((void**)&d_preatt, B * NH * T * T * sizeof(float))); }
"""


def test_packed_tensors_and_channels_are_known(tmp_path: Path) -> None:
    guess = draft(PACKED)
    assert (guess.layout, guess.causal, guess.threads) == ("bs3hd", (True,), "128")
    path = tmp_path / "packed.cu"
    path.write_text(PACKED, encoding="utf-8")
    plan = make_plan(
        described(path, guess.toml()), Problem(2, 3, 8, 64, causal=True, dtype="float32"), {}
    )
    assert [p.entry for p in plan.passes] == ["qk", "pv"]
    assert plan.passes[0].args[4] == ScalarArg("C", "int32", 192)
    assert plan.scratch[0].size_bytes == 4 * 2 * 3 * 8 * 8


THREE = """
__global__ void scores(const float* q, const float* k, float* s, int n, float scale) {}
__global__ void row_softmax(float* x, int n) {}
__global__ void weighted(const float* s, const float* v, float* result, int n) {}
void attention(float* q, float* k, float* v, float* out, int B, int H, int N) {
    float* s; cudaMalloc(&s, (size_t)B * H * N * N * sizeof(float));
    scores<<<dim3(N, B * H), 128>>>(q, k, s, N, 0.125f);
    row_softmax<<<B * H * N, 32>>>(s, N);
    weighted<<<dim3(N, B * H), 64>>>(s, v, out, N);
}
"""


def test_kernels_in_sequence_become_passes(tmp_path: Path) -> None:
    path = tmp_path / "three.cu"
    toml = draft(THREE).toml()
    variant = described(path, toml) if path.write_text(THREE, encoding="utf-8") else None
    assert variant is not None
    assert [p.entry for p in variant.passes] == ["scores", "row_softmax", "weighted"]
    plan = make_plan(variant, Problem(2, 3, 40, 64, dtype="float32"), {})
    assert [p.grid for p in plan.passes] == [(40, 6, 1), (240, 1, 1), (40, 6, 1)]
    (scratch,) = plan.scratch
    assert (scratch.name, scratch.fill) == ("s_buffer", "poison")
    assert scratch.size_bytes == 4 * 2 * 3 * 40 * 40
    given = [[getattr(a, "name", "") for a in p.args] for p in plan.passes]
    assert given[0][:3] == ["q", "k", "s_buffer"]
    assert given[1][0] == "s_buffer"
    assert given[2][:3] == ["s_buffer", "v", "out"]


def test_the_launch_in_the_host_code_is_read() -> None:
    launched = draft(
        "#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))\n"
        "struct Params { int batch, heads, q_len; float scale; };\n"
        "template <typename T, int D, int WARPS, int TILE>\n"
        "__global__ void __launch_bounds__(WARPS * 32) rows(const Params p, T* o, const T* q,\n"
        "    const T* k, const T* v) { extern __shared__ char smem[]; int i = threadIdx.y; }\n"
        "template <typename T, int D> void launch(const Params& p, T* o, T* q, T* k, T* v) {\n"
        "  constexpr int W = 4, TILE = 32;  // W * 8 are too many\n"
        "  dim3 grid(CEIL_DIV(p.q_len, W), p.heads, p.batch), block(32, W);\n"
        "  size_t smem = 2 * TILE * D * sizeof(T);\n"
        "  auto kernel = rows<T, D, W, TILE>;\n"
        "  kernel<<<grid, block, smem, stream>>>(p, o, q, k, v); }\n"
    )
    assert launched.entry == "rows<{element_type}, {head_dim}, 4, 32>"
    assert launched.grid == ("ceil_div(seqlen, 4)", "num_heads", "batch")
    assert launched.threads == "[32, 4]"
    assert launched.smem_bytes == "2 * 32 * head_dim * element_bytes"
    # What the file does not contain is guessed as before.
    unknown = draft(
        "__global__ void __launch_bounds__(96) k(half* q) { extern __shared__ char s[]; }\n"
        "void f() { k<<<blocks_of(x), props.maxThreads, bytes(x)>>>(q); }\n"
    )
    assert (unknown.threads, unknown.smem_bytes) == ("96", "49152")


def test_a_description_is_explained_for_a_problem(tmp_path: Path) -> None:
    code = source("fa2_params")
    guess = replace(draft(code), is_checked=True, layout="bshd")
    variant = described(DATA / "fa2_params.cu", guess.toml())
    plan = make_plan(variant, PROBLEM, {})
    rows = {row.what: row for row in explain(plan, kernels_of(code))}
    assert rows["grid"].value == "2 × 2 × 8 = 32 CTAs"
    assert rows["params.q"].value == "[2, 128, 8, 64] float16"
    assert rows["params.q_row_stride"].value == "512"
    assert rows["params.lse"].value == "[2, 8, 128] float32, natural"
    assert rows["params.is_causal"].value == "false"
    assert why_arguments_differ(plan, kernels_of(code)) == ""
    shorter = code.replace("Flash_fwd_params params) {", "Flash_fwd_params params, int more) {")
    assert says(
        why_arguments_differ(plan, kernels_of(shorter)), "parameters_given_arguments", "2", "1"
    )
    path = tmp_path / "mine.cu"
    path.write_text(code, encoding="utf-8")
    with raises(InvalidKernel, "formula_name", "mine.attune.toml:9: threads: ", "warps"):
        write_description(path, replace(guess, threads="warps").toml(), "beside it")
    assert write_description(path, guess.toml(), "in the source") == path
    assert has_block(path.read_text(encoding="utf-8"))
    with raises(InvalidKernel, "has_description"):
        write_description(path, guess.toml(), "beside it")


@pytest.mark.parametrize(
    "alias",
    ["using matrix = const float *;", "typedef float const* matrix;", "#define matrix float*"],
)
def test_pointers_with_other_names_are_tensors(alias: str) -> None:
    guess = draft(
        f"{alias}\n__global__ void fwd(int N, matrix Q, matrix K, matrix V, float *O) {{}}\n"
    )
    assert guess.dtypes == ("float32",)
    assert [line.partition(",  #")[0] for line in guess.args.splitlines()] == [
        '"seqlen"', '"q"', '"k"', '"v"', '"out"',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "more", "masks"),
    [
        ("j <= row", "", (True,)),
        ("j < row + 1", "", (True,)),
        ("j < N", "", (False,)),
        ("j <= last", "", (False,)),  # not an index of a CTA
        ("j <= row", ", bool causal", (False, True)),
        ("j <= row; CAUSAL(j), ++j) {} for (j = 0; j < N", "", (False,)),  # a macro
    ],
)
def test_a_loop_up_to_the_own_row_means_a_causal_mask(
    bound: str, more: str, masks: tuple[bool, ...]
) -> None:
    guess = draft(
        f"__global__ void k(float* Q, float* K, float* V, float* O, int N{more}) {{\n"
        "  int last = N - 1, row = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"  if (row >= N) return;\n  for (int j = 0; {bound}; ++j) O[row] += Q[row] * K[j];\n}}\n"
    )
    assert guess.causal == masks


@pytest.mark.parametrize(
    ("statement", "is_causal"),
    [
        ("if (j > row) break;", True),
        ("if (j > row) { continue; }", True),
        ("if (row < j) break;", True),
        ("if (j > row) s = -INFINITY;", True),
        ("s = j > row ? -1e9f : s;", True),
        ("if (j > last) break;", False),
        ("if (row > N) break;", False),
        ("if (j > row) s += 1;", False),
    ],
)
def test_skipping_keys_after_the_own_row_means_a_causal_mask(
    statement: str, is_causal: bool
) -> None:
    guess = draft(
        "__global__ void k(float* Q, float* K, float* V, float* O, int N) {\n"
        "  int last = N - 1, row = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (row >= N) return;\n  for (int j = 0; j < N; ++j) {\n"
        f"    float s = Q[row] * K[j];\n    {statement}\n    O[row] += s;\n  }}\n}}\n"
    )
    assert guess.causal == (is_causal,)


def test_two_versions_of_a_kernel_are_no_passes() -> None:
    """Each is launched with the last grid declared before it."""
    parameters = "(const float* Q, const float* K, const float* V, float* O, int N, float* l)"
    code = "".join(f"__global__ void {name}{parameters} {{}}\n" for name in ("slow", "fast"))
    launch = "{0}<<<grid, threads>>>(Q, K, V, O, N, l); }}\n"
    code += "void run_slow() { dim3 grid(1); int threads = 1; " + launch.format("slow")
    code += "void run_fast() { dim3 grid(batch, heads); int threads = 64; " + launch.format("fast")
    slow, fast = (draft_of(code, kernel) for kernel in kernels_of(code))
    assert (slow.grid, slow.threads, slow.later) == (("1", "1", "1"), "1", ())
    assert (fast.grid, fast.threads) == (("batch", "num_heads", "1"), "64")
    assert slow.others == ("fast",)


EXTENSION = """
#include <torch/extension.h>
#include <vector>
template <typename scalar_t>
__global__ void rows(const scalar_t* q, const scalar_t* k, const scalar_t* v, scalar_t* out,
                     int seqlen, int dim, float scale) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const long base = static_cast<long>(blockIdx.y) * seqlen * dim;
  if (row >= seqlen) return;
  float m = -INFINITY, l = 0.f, acc[64] = {};
  for (int j = 0; j < seqlen; j++) {
    float s = 0.f;
    for (int d = 0; d < dim; d++)
      s += static_cast<float>(q[base + row * dim + d]) * static_cast<float>(k[base + j * dim + d]);
    s *= scale;
    const float larger = fmaxf(m, s), c = __expf(m - larger), p = __expf(s - larger);
    l = l * c + p, m = larger;
    for (int d = 0; d < dim; d++)
      acc[d] = acc[d] * c + p * static_cast<float>(v[base + j * dim + d]);
  }
  for (int d = 0; d < dim; d++) out[base + row * dim + d] = static_cast<scalar_t>(acc[d] / l);
}
torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  const int B = q.size(0), H = q.size(1), S = q.size(2), D = q.size(3);
  auto out = torch::empty_like(q);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(q.scalar_type(), "rows", [&] {
    rows<scalar_t><<<dim3((S + 127) / 128, B * H), 128>>>(
        q.data_ptr<scalar_t>(), k.data_ptr<scalar_t>(), v.data_ptr<scalar_t>(),
        out.data_ptr<scalar_t>(), S, D, 1.0f / sqrtf(D));
  });
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


def test_host_code_overrides_guesses_from_names() -> None:
    """C is the head dimension here, and the channels of all heads elsewhere."""
    code = re.sub(r"\bdim\b", "C", EXTENSION).replace("D = q.size(3)", "C = q.size(3)")
    found = draft(code.replace("S, D, 1.0f / sqrtf(D)", "S, C, 1.0f / sqrtf(C)"))
    assert '"head_dim",  # int C' in found.args
    assert found.dtypes == ("float16", "float32")
    wide = code.replace("TYPES_AND_HALF(", "TYPES_AND2(at::kHalf, at::kBFloat16, ")
    assert draft(wide).dtypes == ("float16", "bfloat16", "float32")


@pytest.mark.parametrize(
    ("length", "dims"), [("64", (32, 64)), ("MAX_D", (32,)), ("96", (32, 64)), ("8", (8,))]
)
def test_a_threads_own_array_bounds_the_head_dimension(length: str, dims: tuple[int, ...]) -> None:
    code = EXTENSION.replace("acc[64]", f"acc[{length}]").replace(
        "#include <vector>", "#define MAX_D 32"
    )
    assert draft(code).head_dims == dims


# A launcher that the file does not have, with D as a template argument.
TEMPLATED = """
template <int D>
__global__ void f(const float* q, const float* k, const float* v, float* out, int seqlen) {
  // one
  out[threadIdx.x] = q[threadIdx.x] * k[D] + v[0];
}
"""


@pytest.mark.parametrize(
    ("more", "dims", "shows"),
    [
        ("", (32, 64, 128), False),
        ('static_assert(D == 64 || D == 96, "only these");', (64, 96), True),
        ("static_assert(D % 64 == 0 && D <= 256);", (64, 128), True),
        ("static_assert(sizeof(int) == 4);", (32, 64, 128), False),
    ],
)
def test_head_dims_that_assertions_allow(more: str, dims: tuple[int, ...], shows: bool) -> None:
    found = draft(TEMPLATED.replace("// one", more))
    assert (found.head_dims, found.shows_head_dims) == (dims, shows)
    assert ("not shown by the source" in found.toml()) is not shows


@pytest.mark.parametrize(
    ("more", "dims"),
    [
        ("template __global__ void f<80>(const float*, const float*, const float*, float*, int);",
         (80,)),
        ("template <int kHeadDim> void run(int n) { f<kHeadDim><<<n, kHeadDim>>>(0, 0, 0, 0, n); }"
         "void all(int n) { run<64>(n); run<WIDE>(n); }\n#define WIDE 128", (64, 128)),
    ],
)  # fmt: skip
def test_head_dims_of_instantiated_templates(more: str, dims: tuple[int, ...]) -> None:
    found = draft(TEMPLATED + more)
    assert (found.head_dims, found.shows_head_dims) == (dims, True)


def test_a_constant_that_the_kernel_uses_is_its_head_dim() -> None:
    code = EXTENSION.replace("#include <vector>", "#define HD 32").replace("acc[64]", "acc[HD]")
    found = draft(code)
    assert (found.head_dims, found.shows_head_dims) == ((32,), True)


def test_tiles_of_rows_strided_over_by_a_warp_are_recognised() -> None:
    code = """
__global__ void rows(const half* Q, const half* K, const half* V, half* O, int S, float scale) {
  __shared__ float acc[16 * 64];
  const int tile = blockIdx.x, bh = blockIdx.y;
  const half* q = Q + ((size_t)bh * S + tile * 16) * 64;
  const half* k = K + (size_t)bh * S * 64;
  for (int i = threadIdx.x; i < 16 * 64; i += 32) acc[i] = q[i] * k[i];
  for (int i = threadIdx.x; i < 16 * 64; i += 32) O[((size_t)bh * S + tile * 16) * 64 + i] = acc[i];
}
"""
    found = draft(code)
    assert found.threads == "32"
    assert found.grid == ("ceil_div(seqlen, 16)", "batch * num_heads", "1")


def test_python_sources_get_instructions_for_a_cu_file() -> None:
    with raises(InvalidKernel, "python_file", "mine.py"):
        kernel_named("mine.py")


@pytest.mark.slow
def test_a_pytorch_extension_runs_with_its_drafted_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `scalar_t` is a type of PyTorch's headers, which are not installed."""
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")
    (tmp_path / "rows.cu").write_text(draft(EXTENSION).block() + EXTENSION)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    request = EvaluationRequest("rows", Problem(1, 2, 40, 64), {}, gpu="L4", backend="cpu")
    with untimed() as evaluator:
        evaluation = evaluator.evaluate(request).evaluation
    assert evaluation.status is Status.PASSED, evaluation.reason
