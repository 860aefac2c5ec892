"""Tensor maps, clusters and register budgets: from a description block to the launch plan."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.launch_arguments import PassLaunch, TensorMapArg, encode_argument
from engine.pipeline.trial import explain
from kernels.description import KernelDescriptionError, parse_variant
from kernels.variant import Variant

PATH = Path("v30_test.cu")
SOURCE = """\
// v30 A test: tensor maps.
/* attune
head_dims = [64, 96, 128]
min_compute_capability = 9.0
arch_specific = true
gqa = true
layout = {v = "bshd"}
tunables.block_n = {values = [64, 128, 512], default = 64, meaning = "K/V rows per tile"}
let.columns = "64 if head_dim % 64 == 0 else 32"

[tensor_maps]
q_map = {tensor = "q", dims = ["head_dim", "head", "row", "batch"], box = [64, 4, 16, 1]}
k_map = {tensor = "k", box = ["columns", "block_n", 1, 1], swizzle = "2 * columns"}
v_map = {tensor = "v", box = ["columns", "block_n", 1, 1], swizzle = "2 * columns"}

[[passes]]
entry = "attention_forward"
grid = ["2 * ceil_div(seqlen, 128)", "num_heads", "batch"]
threads = 384
cluster = [2, 1, 1]
warpgroup_registers = [24, 240, 240]
args = ["q_map", "k_map", "v_map", "out", "seqlen_kv"]
*/
"""


def parsed(text: str = SOURCE) -> Variant:
    return parse_variant(text, PATH)


def launch(problem: Problem, text: str = SOURCE, block_n: int = 64) -> PassLaunch:
    return make_plan(parsed(text), problem, {"block_n": block_n}).passes[0]


def test_a_map_says_where_a_tensor_lies_and_what_a_copy_brings() -> None:
    found = launch(Problem(2, 8, 100, 96, num_heads_kv=2, seqlen_kv=300), block_n=128)
    assert (found.cluster, found.warpgroup_registers) == ((2, 1, 1), (24, 240, 240))
    row, head = 96 * 2, 100 * 96 * 2
    assert found.args[:3] == (
        TensorMapArg(*("q_map", "q", (96, 8, 100, 2), (head, row, 8 * head), (64, 4, 16, 1)), 128),
        TensorMapArg(
            *("k_map", "k", (96, 300, 2, 2), (row, 300 * row, 600 * row), (32, 128, 1, 1)), 64
        ),
        # [batch, seqlen, num_heads, head_dim]
        TensorMapArg(
            *("v_map", "v", (96, 300, 2, 2), (2 * row, row, 600 * row), (32, 128, 1, 1)), 64
        ),
    )


def test_a_map_is_128_bytes_with_its_tensors_address() -> None:
    tensor_map = launch(Problem(2, 8, 100, 64)).args[1]
    encoded = encode_argument(tensor_map)
    assert (encoded.kind, encoded.alignment, encoded.pointers) == ("s", 64, ((8, "k"),))
    data = encoded.with_addresses({"k": 0x7F00_0000_1000})
    assert len(data) == 128
    _, base, rank, element, swizzle, *boxes = struct.unpack_from("<QQ3I5I", data)
    assert (base, rank, element, swizzle, boxes) == (0x7F00_0000_1000, 4, 2, 3, [64, 64, 1, 1, 0])


def test_the_explanation_names_maps_clusters_and_registers() -> None:
    plan = make_plan(parsed(), Problem(1, 2, 100, 64), {"block_n": 64})
    rows = {row.what: (row.type, row.value) for row in explain(plan, [])}
    assert rows["cluster"][1] == "2 × 1 × 1 CTAs"
    assert rows["registers"][1] == "24, 240, 240"
    assert rows["argument 2"] == (
        "tensor map",
        "k [64, 100, 2, 1], box [64, 64, 1, 1], swizzle 128",
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('tensor = "k"', 'tensor = "p"', 13, "tensor: it is one of q, k, v, out, not 'p'."),
        ('tensor = "k"', 'buffer = "k"', 13, "there is no key `buffer` here: known are tensor"),
        ('["columns", "block_n", 1, 1]', '["block_n", 1, 1]', 13, "box: it has 4 sizes (head_dim"),
        ('["columns", "block_n", 1, 1]', '["column", 1, 1, 1]', 13, "box: there is no column: did"),
        ('swizzle = "2 * columns"', 'swizzle = "x"', 13, "swizzle: there is no x"),
        ('swizzle = "2 * columns"', "swizzle = [1]", 13, "swizzle: it is a number of bytes"),
        ('["head_dim", "head"', '["head", "head_dim"', 12, "dims: it orders head_dim, row, head"),
        ('"head", "row", "batch"]', '"head", "row", 3]', 12, "dims: it orders head_dim, row"),
        ("k_map =", "seqlen =", 13, "seqlen: this name is taken."),
        ('"q_map", "k_map", "v_map"', '"q_map", "k", "v_map"', 13, "k_map: no pass takes this"),
        (
            '"v_map", "out"',
            '"v_nap", "out"',
            22,
            "args: there is no argument 'v_nap': did you mean v_",
        ),
        ("cluster = [2, 1, 1]", "cluster = [2, 1]", 20, "cluster: it has 3 sizes, not 2."),
        ("cluster = [2, 1, 1]", "cluster = 2", 20, "cluster: it is a list of formulas, not 2."),
        ("[24, 240, 240]", "[]", 21, "warpgroup_registers: it has some sizes, not 0."),
    ],
)
def test_a_mistake_names_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in SOURCE
    with pytest.raises(KernelDescriptionError) as caught:
        parsed(SOURCE.replace(old, new, 1))
    assert str(caught.value).startswith(f"v30_test.cu:{line}: {words}")


@pytest.mark.parametrize(
    ("old", "new", "block_n", "words"),
    [
        ("", "", 512, r"k_map that TMA does not take, its box of .* exceeds 1 to 256 along"),
        ('"2 * columns"', "96", 64, "its swizzle is 96 bytes, and there are 0, 32, 64, 128"),
        ('"2 * columns"', "64", 64, "its box's rows of 128 bytes exceed the swizzle of 64 bytes"),
        ('["columns", "bl', '["4", "bl', 64, "its box's rows of 8 bytes are not a multiple of 16"),
        ("cluster = [2, 1, 1]", "cluster = [4, 4, 1]", 64, "and every GPU has 1 to 8: see v30_te"),
        ("cluster = [2, 1, 1]", "cluster = [3, 1, 1]", 64, r"grid of \(2, 2, 1\) that clusters of"),
        ("threads = 384", "threads = 256", 64, "registers for 3 warpgroups of 128 threads, and it"),
        ("[24, 240, 240]", "[20, 240, 240]", 64, "and setmaxnreg takes 24, 32, ... 256"),
        ("[24, 240, 240]", "[40, 240, 240]", 64, "66,560 registers for its warpgroups, and an SM"),
    ],
)
def test_what_no_gpu_takes_is_a_sentence(old: str, new: str, block_n: int, words: str) -> None:
    with pytest.raises(InvalidProblem, match=words) as caught:
        launch(Problem(1, 2, 100, 64), SOURCE.replace(old, new), block_n)
    assert "v30_test.cu" in str(caught.value)
