"""Tensor maps, clusters and register budgets: from a description block to the launch plan."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from words import raises, says

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


def test_a_tensor_map_describes_tensor_and_box() -> None:
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
    ("old", "new", "line", "name", "facts"),
    [
        (
            'tensor = "k"',
            'tensor = "p"',
            13,
            "description_choice",
            ["tensor", "q, k, v, out", "'p'"],
        ),
        ('tensor = "k"', 'buffer = "k"', 13, "description_key_unknown", ["`buffer`", "tensor"]),
        (
            '["columns", "block_n", 1, 1]',
            '["block_n", 1, 1]',
            13,
            "tensor_map_sizes",
            ["box", "4", "not 3"],
        ),
        (
            '["columns", "block_n", 1, 1]',
            '["column", 1, 1, 1]',
            13,
            "formula_name",
            ["box", "column"],
        ),
        ('swizzle = "2 * columns"', 'swizzle = "x"', 13, "formula_name", ["swizzle", "x"]),
        ('swizzle = "2 * columns"', "swizzle = [1]", 13, "description_kind", ["swizzle", "[1]"]),
        (
            '["head_dim", "head"',
            '["head", "head_dim"',
            12,
            "tensor_map_order",
            ["dims", "head_dim, row, head"],
        ),
        (
            '"head", "row", "batch"]',
            '"head", "row", 3]',
            12,
            "tensor_map_order",
            ["dims", "head_dim, row, head"],
        ),
        ("k_map =", "seqlen =", 13, "description_name_taken", ["seqlen"]),
        (
            '"q_map", "k_map", "v_map"',
            '"q_map", "k", "v_map"',
            13,
            "tensor_map_not_taken",
            ["k_map"],
        ),
        (
            '"v_map", "out"',
            '"v_nap", "out"',
            22,
            "argument_unknown",
            ["'v_nap'", "v_map?"],
        ),
        (
            "cluster = [2, 1, 1]",
            "cluster = [2, 1]",
            20,
            "description_sizes",
            ["cluster", "3", "not 2"],
        ),
        ("cluster = [2, 1, 1]", "cluster = 2", 20, "description_kind", ["cluster", "2"]),
        ("[24, 240, 240]", "[]", 21, "description_sizes", ["warpgroup_registers", "0"]),
    ],
)
def test_an_error_in_a_description_names_its_line(
    old: str, new: str, line: int, name: str, facts: list[str]
) -> None:
    assert old in SOURCE
    with pytest.raises(KernelDescriptionError) as caught:
        parsed(SOURCE.replace(old, new, 1))
    assert str(caught.value).startswith(f"v30_test.cu:{line}: ")
    assert says(str(caught.value), name, *facts)


@pytest.mark.parametrize(
    ("old", "new", "block_n", "name", "facts"),
    [
        ("", "", 512, "tensor_map_box", ["k_map", "1 to 256"]),
        ('"2 * columns"', "96", 64, "tensor_map_swizzle_size", ["96", "0, 32, 64, 128"]),
        ('"2 * columns"', "64", 64, "tensor_map_swizzle", ["128 bytes", "64 bytes"]),
        ('["columns", "bl', '["4", "bl', 64, "tensor_map_row_multiple", ["8 bytes", "16"]),
        (
            "cluster = [2, 1, 1]",
            "cluster = [4, 4, 1]",
            64,
            "cluster_larger_than_gpus",
            ["(4, 4, 1)", "1 to 8"],
        ),
        (
            "cluster = [2, 1, 1]",
            "cluster = [3, 1, 1]",
            64,
            "cluster_divides_grid",
            ["(2, 2, 1)", "(3, 1, 1)"],
        ),
        (
            "threads = 384",
            "threads = 256",
            64,
            "warpgroups_of_registers",
            ["3 warpgroups", "256 threads"],
        ),
        ("[24, 240, 240]", "[20, 240, 240]", 64, "setmaxnreg_counts", ["(20, 240, 240)"]),
        ("[24, 240, 240]", "[40, 240, 240]", 64, "registers_of_sm", ["66,560", "65,536"]),
    ],
)
def test_impossible_tensor_maps_give_a_message(
    old: str, new: str, block_n: int, name: str, facts: list[str]
) -> None:
    with raises(InvalidProblem, name, "v30_test.cu", *facts):
        launch(Problem(1, 2, 100, 64), SOURCE.replace(old, new), block_n)
