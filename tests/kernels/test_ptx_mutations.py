"""Bugs in the PTX of the ladder's headers are found by the checks of v08 or v12."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from slow_cases import one_in

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import make_inputs
from engine.backends.base import RunOptions
from engine.base.errors import FAULTS, Status
from engine.correctness.check import check_output
from engine.cuda_on_host.build import DEFAULT_ARCH
from kernels.ladder import by_id

# The change in mma.cuh or async_copy.cuh, which occurrence, and the variant.
MUTATIONS = {
    "transposed load of K": ("m8n8.x4.shared", "m8n8.x4.trans.shared", 0, "v08"),
    "plain load of V": ("m8n8.x4.trans.shared", "m8n8.x4.shared", 0, "v08"),
    "plain load of V, v12": ("m8n8.x4.trans.shared", "m8n8.x4.shared", 0, "v12"),
    "matrices swapped": ("{%0, %1, %2, %3}, [%4];", "{%1, %0, %2, %3}, [%4];", 0, "v08"),
    "matrices swapped, V": ("{%0, %1, %2, %3}, [%4];", "{%0, %2, %1, %3}, [%4];", 1, "v12"),
    "address off by 16 bytes": ("{%0, %1, %2, %3}, [%4];", "{%0, %1, %2, %3}, [%4+16];", 0, "v08"),
    "address misaligned": ("{%0, %1, %2, %3}, [%4];", "{%0, %1, %2, %3}, [%4+2];", 1, "v08"),
    "halves of B swapped": ("{%8, %9}", "{%9, %8}", 0, "v08"),
    "rows of A swapped": ("{%4, %5, %6, %7}", "{%5, %4, %7, %6}", 0, "v08"),
    "columns of A swapped": ("{%4, %5, %6, %7}", "{%6, %7, %4, %5}", 0, "v08"),
    "one B twice": ("{%8, %9}", "{%8, %8}", 0, "v12"),
    "sums of the wrong rows": (", {%0, %1, %2, %3};", ", {%2, %3, %0, %1};", 0, "v08"),
    "result of the wrong columns": ('"{%0, %1, %2, %3}, {%4', '"{%1, %0, %3, %2}, {%4', 0, "v08"),
    "sums not read": (", {%0, %1, %2, %3};", ", {0f00000000, 0.0, 0.0, 0.0};", 0, "v08"),
    "another element type": ("f32.f16.f16.f32", "f32.bf16.bf16.f32", 0, "v08"),
    "half the products": ("m16n8k16.row.col.f32.f16", "m16n8k8.row.col.f32.f16", 0, "v08"),
    "A by columns": (".row.col.f32.f16", ".col.col.f32.f16", 0, "v08"),
    "sums in another register": ('"+f"(d[3])', '"=f"(d[3])', 0, "v08"),
    "sums of another index": ('"+f"(d[3])', '"+f"(d[2])', 0, "v12"),
    "8 bytes copied": ("16, %2;", "8, %2;", 0, "v12"),
    "rows past the end not zero": ("[%1], 16, %2;", "[%1], 16, 4;", 0, "v12"),
    "no wait": ("cp.async.wait_all;", "", 0, "v12"),
    "waits for too few": ("wait_all;", "commit_group; cp.async.wait_group 1;", 0, "v12"),
    "waits before the group is closed": ("cp.async.wait_all;", "cp.async.wait_group 0;", 0, "v12"),
    "copied to the next row": ("[%0], [%1], 16", "[%0+16], [%1], 16", 0, "v12"),
    "an instruction that is not there": ("cp.async.cg", "cp.async.cx", 0, "v12"),
    "sm_75: one half of A twice": ("{a[2], a[3], b1}", "{a[0], a[1], b1}", 0, "v08"),
    "sm_75: halves of B swapped": ("b0}, {a[2], a[3], b1}", "b1}, {a[2], a[3], b0}", 0, "v08"),
    "sm_75: copied out of order": ("{%1, %2, %3, %4}", "{%1, %2, %4, %3}", 0, "v12"),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(17, list(MUTATIONS), slow=12))
def test_a_mutation_is_found(cpu, tmp_path, name):
    old, new, number, variant_id = MUTATIONS[name]
    arch = "sm_75" if name.startswith("sm_75") else DEFAULT_ARCH
    variant = by_id(variant_id)
    for path in variant.source.parent.glob("*.cu*"):
        shutil.copy(path, tmp_path)
    changed = 0
    for header in ("mma.cuh", "async_copy.cuh"):
        text = (tmp_path / header).read_text()
        pieces = text.split(old)
        if len(pieces) > number + 1:
            before, behind = old.join(pieces[: number + 1]), old.join(pieces[number + 1 :])
            (tmp_path / header).write_text(before + new + behind)
            changed += 1
    assert changed == 1, "the mutation no longer fits the headers"
    problem = Problem(1, 1, 77, 64, causal=True)
    plan = make_plan(variant, problem, variant.default_config())
    plan = replace(plan, source=tmp_path / variant.source.name)
    inputs = make_inputs(problem)
    result = cpu.run(plan, inputs, RunOptions(check=True, repeat=False, arch=arch))
    if result.status is Status.PASSED:
        assert not check_output(inputs, result, plan=plan).passed
    else:
        assert result.status in FAULTS | {Status.COMPILE_ERROR}, result.reason
        assert ".cu" in result.reason
