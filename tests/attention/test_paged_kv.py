"""K and V in pages: positions of keys, descriptions, and kernels that read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from words import raises

from engine.attention.config import default_config
from engine.attention.paged_kv import Pages
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import decode, make_inputs
from engine.backends.partial import PartialRunError, choose_part
from engine.base.launch_arguments import TensorArg
from engine.model.kernel import launch_of_pass
from kernels.description import parse_variant
from kernels.ladder import by_id
from kernels.toml_block import KernelDescriptionError

PROBLEM = Problem(3, 4, 1, 32, seqlen_kv=37, num_heads_kv=2)


def _plan(page_size: int = 16) -> LaunchPlan:
    v21 = by_id("v21")
    return make_plan(v21, PROBLEM, default_config(v21, {"page_size": page_size}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_the_block_table_maps_every_key_and_other_rows_are_nan(dtype, rows: int) -> None:
    problem = replace(PROBLEM, dtype=dtype)
    pages, inputs = Pages(problem, rows), make_inputs(problem)
    table, paged = pages.table(), pages.scatter(inputs.k)
    assert paged.dtype == inputs.k.dtype
    assert paged.nbytes == pages.kv_bytes
    assert (table.dtype, table.nbytes) == (np.dtype(np.int32), pages.table_bytes)
    assert len(np.unique(table)) == table.size < pages.count
    for batch in range(problem.batch):
        for key in range(problem.num_keys):
            found = paged[table[batch, key // rows], :, key % rows]
            np.testing.assert_array_equal(found, inputs.k[batch, :, key])
    numbers = np.isfinite(decode(paged, dtype)).sum()
    assert numbers == inputs.k.size


def test_the_order_of_pages_is_mixed_and_always_the_same() -> None:
    table = Pages(PROBLEM, 16).table()
    np.testing.assert_array_equal(table, Pages(PROBLEM, 16).table())
    assert list(table.ravel()) != sorted(table.ravel())


def test_a_plan_has_the_pages_and_their_table() -> None:
    plan = _plan()
    pages = 3 * 3 + 1
    assert plan.buffer_bytes["k"] == plan.buffer_bytes["v"] == pages * 2 * 16 * 32 * 2
    assert plan.buffer_bytes["block_table"] == 3 * 3 * 4
    assert TensorArg("block_table") in plan.passes[0].args
    tensors = make_inputs(PROBLEM).in_layouts(plan.layouts, plan.pages)
    assert {name: x.nbytes for name, x in tensors.items()} == {
        name: plan.buffer_bytes[name] for name in ("q", "k", "v", "block_table")
    }


def test_machine_code_reads_the_table_itself() -> None:
    plan = _plan()
    assert plan.pages is not None
    ((address, content),) = launch_of_pass(plan, 0).known
    assert content == plan.pages.table().tobytes()
    assert address.to_bytes(8, "little") in launch_of_pass(plan, 0).arguments


def test_pages_are_not_executed_in_part() -> None:
    with raises(PartialRunError, "part_pages"):
        choose_part(_plan(), lambda _, ctas: [None] * len(ctas), 1e9)


@pytest.mark.parametrize(
    ("old", "new", "name", "fact"),
    [
        ('"block_table", ', "", "argument_not_taken", "`block_table`"),
        ('page_rows = "page_size"\n', "", "argument_unknown", "'block_table'"),
        ("gqa = true\n", 'gqa = true\nlayout = "bshd"\n', "pages_are_bhsd", "layout"),
        ('page_rows = "page_size"', 'page_rows = "pagesize"', "formula_name", "pagesize"),
    ],
)
def test_an_invalid_description_gives_a_one_sentence_error(
    old: str, new: str, name: str, fact: str
) -> None:
    v21 = by_id("v21")
    text = v21.source.read_text("utf-8")
    assert old in text
    with raises(KernelDescriptionError, name, fact):
        parse_variant(text.replace(old, new), Path("v21_paged_decode.cu"))
