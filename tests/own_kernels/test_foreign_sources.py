"""Sources of CuPy's `RawKernel`, which have no launch, and of PyTorch extensions: the drafted
descriptions, and that kernels run with them."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from slow_cases import slow_ones
from untimed import untimed

from engine.attention.config import VARIABLE
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.own_kernels.draft import Draft, draft_block, draft_of
from engine.own_kernels.host_launch import kernels_of
from engine.pipeline.request import EvaluationRequest

DATA = Path(__file__).with_name("kernels")
_LAUNCHES = {
    "raw_row": (("seqlen", "batch * num_heads", "1"), "128", "seqlen * 4"),
    "raw_warp": (("ceil_div(batch * num_heads * seqlen, 4)", "1", "1"), "128", "0"),
    "raw_tiles": (("ceil_div(seqlen, 32)", "num_heads", "batch"), "32", "0"),
    "extension_dispatch": (("seqlen", "num_heads", "batch"), "64", "seqlen * 4"),
    "extension_strides": (("(seqlen + 4 - 1) // 4", "num_heads", "batch"), "[32, 4]", "0"),
    "extension_split": (("seqlen", "4", "batch * num_heads"), "head_dim", "0"),
    "extension_accessor": (("seqlen", "num_heads", "batch"), "128", "seqlen_kv * 4"),
    "extension_switch": (("(seqlen + 3) // 4", "batch * num_heads", "1"), "128", "0"),
}
_ROWS = "const float* q, const float* k, const float* v, float* o, int B, int H, int N, int D"


def drafted(name: str) -> Draft:
    text = (DATA / f"{name}.cu").read_text(encoding="utf-8")
    return draft_of(text, kernels_of(text)[0])


@pytest.mark.parametrize("name", _LAUNCHES)
def test_the_launch_of_a_foreign_source_is_guessed(name: str) -> None:
    guess = drafted(name)
    assert (guess.grid, guess.threads, guess.smem_bytes) == _LAUNCHES[name]


def test_types_and_strides_of_extensions_are_guessed() -> None:
    assert drafted("extension_dispatch").dtypes == ("float16", "bfloat16", "float32")
    strides = drafted("extension_strides")
    assert strides.layout == "bshd"
    for name in ("q_stride_b", "k_stride_b", "stride_h", "stride_s"):
        tensor = name[0] if name[1] == "_" else "q"
        axis = {"b": "batch", "h": "head", "s": "row"}[name[-1]]
        assert f'"{name}", ctype = "int64", value = "{tensor}_stride_{axis}"' in strides.args
    split = drafted("extension_split")
    assert split.dtypes == ("float16",)
    assert [pass_.entry for pass_ in split.later] == ["combine_kernel"]
    assert split.later[0].grid == ("seqlen", "batch * num_heads", "1")


_SWITCH = (
    "(const half* q, const half* k, const half* v, half* o, int N) { extern __shared__ half s[]; }"
    "\nvoid run(int N, int D) {"
)


def test_the_sizes_and_strides_of_a_tensor_by_value_are_guessed() -> None:
    by_value = "torch::PackedTensorAccessor{}<float, {}, torch::RestrictPtrTraits>"
    small, large = by_value.format(32, 4), by_value.format(64, 3)
    text = (
        f"__global__ void f({small} q, const {small} k, {small} v, {large} out) "
        "{ out[0][0][0] = q[0][0][0][0]; }\n// tensors are [B, S, H, D]\n"
    )
    guess = draft_of(text, kernels_of(text)[0])
    assert (guess.dtypes, guess.layout, guess.head_dims) == (("float32",), "bshd", (64,))
    for of, what, axis, ctype, value in (
        ("q", "size", 1, "int32", '"seqlen"'),
        ("k", "size", 2, "int32", '"num_heads_kv"'),
        ("k", "stride", 0, "int32", '"k_stride_batch"'),
        ("v", "stride", 1, "int32", '"v_stride_row"'),
        ("v", "stride", 3, "int32", "1"),
        ("out", "size", 0, "int64", '"batch * seqlen"'),
        ("out", "stride", 0, "int64", '"out_stride_row"'),
        ("out", "stride", 1, "int64", '"out_stride_head"'),
    ):
        field = f'{{name = "{of}_{what}_{axis}", ctype = "{ctype}", value = {value}}}'
        assert field in guess.args
    assert drafted("extension_accessor").head_dims == (32, 64, 128)


@pytest.mark.parametrize(
    ("code", "dims", "smem"),
    [
        # Instantiations with D as a template argument, named differently in each case.
        (
            "switch (D) { case 128: f<128><<<N, 128, 4 * 128>>>(); break; "
            "case 64: f<64><<<N, 128, 4 * 64>>>(); break; }",
            (64, 128),
            "4 * head_dim",
        ),
        (
            "switch (D) { case 32: { constexpr int kD = 32; f<kD><<<N, 128>>>(); break; } "
            "case 96: { constexpr int kD = 96; f<kD><<<N, 128>>>(); break; } }",
            (32, 96),
            "0",
        ),
        # A launch cannot replace one with another number of threads.
        ("if (D == 64) f<64><<<N, 128>>>(); else f<128><<<N, 256>>>();", (64,), "0"),
        # A separate launcher, which a switch or a comparison chooses.
        (
            "switch (q.size(-1)) { case 40: go<40>(); case 80: go<80>(); } } template <int D> "
            "void go() { f<D><<<N, 128>>>();",
            (40, 80),
            "0",
        ),
        (
            "if (head_dim == 64) go<64>(); else if (head_dim == 256) go<256>(); } template <int D> "
            "void go() { f<D><<<N, 128>>>();",
            (64, 256),
            "0",
        ),
        ("switch (D) { }", (32, 64, 128), "49152"),
    ],
)
def test_all_head_dims_that_a_launcher_chooses_among(
    code: str, dims: tuple[int, ...], smem: str
) -> None:
    text = f"template <int D> __global__ void f{_SWITCH} {code} }}\n"
    guess = draft_of(text, kernels_of(text)[0])
    assert (guess.entry, guess.head_dims, guess.smem_bytes) == ("f<{head_dim}>", dims, smem)


@pytest.mark.parametrize(
    ("body", "grid"),
    [
        # One CTA for each row, in three ways of counting them.
        ("int row = blockIdx.x; int head = row / N;", ("batch * num_heads * seqlen", "1", "1")),
        (
            "const float* a = q + ((size_t)blockIdx.y * N + blockIdx.x) * D;",
            ("seqlen", "batch * num_heads", "1"),
        ),
        (
            "int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z; o[((b * N + i) * H + h) * D] = 0;",
            ("seqlen", "num_heads", "batch"),
        ),
        # One warp for each row, of all threads.
        (
            "int w = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; if (w >= B * H * N) return;",
            ("ceil_div(batch * num_heads * seqlen, 4)", "1", "1"),
        ),
        (
            "int row = blockIdx.x * blockDim.y + threadIdx.y; o[(blockIdx.y * N + row) * D] = 0;",
            ("ceil_div(seqlen, 4)", "batch * num_heads", "1"),
        ),
        # Tiles.
        (
            "int bh = blockIdx.x, first = blockIdx.y * 16; o[(bh * N + first) * D] = 0;",
            ("batch * num_heads", "ceil_div(seqlen, 16)", "1"),
        ),
        (
            "int b = blockIdx.x / H, h = blockIdx.x % H, row = blockIdx.y * 32 + threadIdx.x;",
            ("batch * num_heads", "ceil_div(seqlen, 32)", "1"),
        ),
        # All rows of a head.
        ("const float* a = q + (size_t)blockIdx.x * N * D;", ("batch * num_heads", "1", "1")),
        # For expressions that are not understood, the default is guessed.
        (
            "int tiles = (N + 63) / 64, tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;",
            ("batch * num_heads * ceil_div(seqlen, 64)", "1", "1"),
        ),
    ],
)
def test_the_grid_is_guessed_from_the_body(body: str, grid: tuple[str, str, str]) -> None:
    code = f'extern "C" __global__ void rows({_ROWS}) {{ {body} }}\n'
    assert draft_of(code, kernels_of(code)[0]).grid == grid


@pytest.mark.parametrize(
    ("body", "threads"),
    [
        ("__shared__ float sums[256]; int t = threadIdx.x; sums[t] = 0;", "256"),
        ("__shared__ float s[16][32]; s[threadIdx.y][threadIdx.x] = 0;", "[32, 16]"),
        ("int row = blockIdx.x * 96 + threadIdx.x;", "96"),
        ("int lane = threadIdx.x, warp = threadIdx.y;", "[32, 8]"),
    ],
)
def test_the_threads_are_guessed_from_the_body(body: str, threads: str) -> None:
    code = f"#define WARPS 8\n__global__ void rows({_ROWS}) {{ {body} }}\n"
    assert draft_of(code, kernels_of(code)[0]).threads == threads


def test_a_body_of_any_text_is_read_in_time() -> None:
    names = [f"v{i}" for i in range(300)]
    chain = "".join(f"int {a} = {b} * {b} + {b} * {b};" for a, b in itertools.pairwise(names))
    for body in (
        f"int v299 = blockIdx.x; {chain}",
        "for (int " * 5000,
        "[" * 5000 + "blockIdx.x" + "]" * 5000,
        "blockIdx.x" + " < w" * 20_000,
        "int x = " + "(" * 200 + "blockIdx.x" + ")" * 200 + ";",
        "w" * 200_000 + "; extern __shared__ float s[]; s[blockIdx.x] = 0",
    ):
        code = f"__global__ void rows({_ROWS}) {{ {body} }}\n"
        start = time.process_time()
        assert "[[passes]]" in draft_block(code, Path("rows.cu"))
        assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "name",
    [
        "raw_row",
        *slow_ones(4, [name for name in _LAUNCHES if name != "raw_row"]),
    ],
)
def test_a_foreign_source_runs_with_its_drafted_description(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")
    text, guess = (DATA / f"{name}.cu").read_text(encoding="utf-8"), drafted(name)
    (tmp_path / f"{name}.cu").write_text(guess.block() + text)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    dim = guess.head_dims[-1]
    assert isinstance(dim, int)
    problem = Problem(1, 2, 40, dim, dtype=guess.dtypes[0])
    with untimed() as evaluator:
        evaluation = evaluator.evaluate(
            EvaluationRequest(name, problem, {}, gpu="L4", backend="cpu")
        ).evaluation
    assert evaluation.status is Status.PASSED, evaluation.reason
