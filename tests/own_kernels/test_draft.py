"""Declarations read from sources, the first description guessed from them, and what it means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.base.errors import InvalidKernel
from engine.own_kernels.draft import Draft, draft_block, draft_of
from engine.own_kernels.explain import described, explain, why_arguments_differ, write_description
from engine.own_kernels.host_launch import fields_of, kernels_of
from engine.own_kernels.registry import check_kernel
from engine.plan import make_plan
from engine.problem import Problem
from kernels.description import has_block, without_block

DATA = Path(__file__).with_name("kernels")
PROBLEM = Problem(2, 8, 128, 64)


def source(name: str) -> str:
    """A kernel's text without its description."""
    return without_block((DATA / f"{name}.cu").read_text(encoding="utf-8"))


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
def test_every_guess_is_a_description_or_one_sentence_away(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.cu"
    path.write_text(source(name), encoding="utf-8")
    with pytest.raises(InvalidKernel) as caught:
        check_kernel(path)
    path.write_text(caught.value.block + source(name), encoding="utf-8")
    if "split" in name:  # its second pass cannot be guessed, and is what is missing
        assert "# Not in here: " in caught.value.block
        with pytest.raises(InvalidKernel, match="no pass takes the argument `out`"):
            check_kernel(path)
    else:
        assert check_kernel(path).id == name


def test_a_structure_of_strides_is_guessed() -> None:
    args = draft(source("flash_split")).args
    assert '{name = "row", ctype = "int64", value = "k_stride_row"}' in args
    assert 'ctype = "int32", value = "num_heads // num_heads_kv"' in args


def test_what_is_guessed() -> None:
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
    assert triton_like.scratch.startswith('counter = {dtype = "int32"')
    assert draft_block("int x;", Path("x.cu")).startswith("/* attune\n")


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
    # What the file does not tell is guessed as before.
    unknown = draft(
        "__global__ void __launch_bounds__(96) k(half* q) { extern __shared__ char s[]; }\n"
        "void f() { k<<<blocks_of(x), props.maxThreads, bytes(x)>>>(q); }\n"
    )
    assert (unknown.threads, unknown.smem_bytes) == ("96", "49152")


def test_what_a_description_means_on_a_problem(tmp_path: Path) -> None:
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
    assert "has 2 parameters and is given 1 arguments" in why_arguments_differ(
        plan, kernels_of(shorter)
    )
    path = tmp_path / "mine.cu"
    path.write_text(code, encoding="utf-8")
    with pytest.raises(InvalidKernel, match=r"mine\.attune\.toml:9: threads: there is no warps"):
        write_description(path, replace(guess, threads="warps").toml(), "beside it")
    assert write_description(path, guess.toml(), "in the source") == path
    assert has_block(path.read_text(encoding="utf-8"))
    with pytest.raises(InvalidKernel, match="has a description already"):
        write_description(path, guess.toml(), "beside it")
