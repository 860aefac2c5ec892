"""Bugs planted in the real kernels: the changed `.cu` is executed, and a finding names the bug."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from planted_bugs.anchors import replaced, spans
from planted_bugs.planting import plain
from slow_cases import one_in
from words import says

from engine.attention.evaluation import Correctness
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.attention.tensors import InputKind, make_inputs
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.correctness import check_output
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

LONG = Problem(1, 2, 512, 64)
ODD = Problem(1, 3, 200, 64)
CAUSAL = Problem(1, 2, 200, 64, causal=True)
LONG_CAUSAL = Problem(1, 2, 512, 64, causal=True)
DECODE = Problem(1, 3, 1, 64, seqlen_kv=512)
ODD_DECODE = Problem(1, 3, 2, 64, seqlen_kv=200)

VISIBLE = "key < seqlen_kv && (!IS_CAUSAL || key <= query)"
LOAD_Q = "load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);"
LOAD_K = "load_tile<BLOCK_N>(k_smem, k + kv_head, n0, seqlen_kv);"
LOAD_V = "load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);"


@dataclass(frozen=True)
class Bug:
    """A change of a kernel's text, and what the diagnosis must say: a finding's code, and names of
    tests/words.json, each with the values in it."""

    name: str
    variants: tuple[str, ...]
    problem: Problem
    old: str
    new: str
    pattern: str
    phrases: tuple[tuple[str, ...], ...] = ()
    config: dict[str, int] = field(default_factory=dict)
    kind: InputKind = "normal"
    header: str = ""  # the file that is changed, if it is not the variant's own


BUGS = (
    Bug(
        "query tile taken from the split",
        ("v05",),
        LONG,
        LOAD_Q,
        "load_tile<BLOCK_M>(q_smem, q + q_head, split * BLOCK_M, seqlen);",
        "query_index",
        (("in_partial_pass",), ("query_tile_of_split",)),
    ),
    Bug(
        "query tile's offset forgotten",
        ("v05",),
        LONG_CAUSAL,
        LOAD_Q,
        "load_tile<BLOCK_M>(q_smem, q + q_head, 0, seqlen);",
        "query_index",
        (("in_partial_pass",), ("first_query_tile",)),
    ),
    Bug(
        "query row off by one",
        ("v02",),
        ODD,
        LOAD_Q,
        "load_tile<BLOCK_M>(q_smem, q + q_head, m0 + 1, seqlen);",
        "query_index",
        (("next_row",),),
    ),
    Bug(
        "fusion without the rescale",
        ("v05",),
        LONG,
        "const float weight = fast_exp2((m_split - m) * scale_log2);",
        "const float weight = 1.0f;",
        "fusion_rescale",
        (("bug_fusion_no_rescale",), ("weights_of_fusion",)),
    ),
    Bug(
        "fusion without the rescale, causal",
        ("v05",),
        LONG_CAUSAL,
        "const float weight = fast_exp2((m_split - m) * scale_log2);",
        "const float weight = 1.0f;",
        "fusion_rescale",
        (("bug_fusion_no_rescale",),),
    ),
    Bug(
        "fusion that forgets the weight of l",
        ("v05",),
        LONG,
        "l += weight * l_partial",
        "l += l_partial",
        "fusion_rescale",
        (("bug_fusion_o_alone",),),
    ),
    Bug(
        "fusion that skips the last split",
        ("v05",),
        LONG,
        "for (int split = 0; split < NUM_SPLITS; split++) {\n        const size_t partial_row",
        "for (int split = 0; split < NUM_SPLITS - 1; split++) {\n        const size_t partial_row",
        "split_missing",
        (("bug_leaving_out", "split 3", "384", "511"),),
    ),
    Bug(
        "chunks that overlap by a tile",
        ("v05",),
        LONG,
        "(split + 1) * chunk_rows)",
        "(split + 1) * chunk_rows + BLOCK_N)",
        "kv_split_seam",
        (("bug_first_of_others_twice", "key tile", "split"),),
    ),
    Bug(
        "fusion that reads what no CTA wrote",
        ("v05",),
        LONG_CAUSAL,
        "if (m_split == -INFINITY) continue;",
        "",
        "nan_row",
        (("no_cta_wrote",),),
    ),
    Bug(
        "missing tail mask",
        ("v01", "v02", "v05"),
        ODD,
        VISIBLE,
        "(!IS_CAUSAL || key <= query)",
        "tail_mask",
        (("bug_missing_tail_mask", "56", "S = 200"),),
    ),
    Bug(
        "causal mask off by one, too many",
        ("v01", "v02", "v05"),
        CAUSAL,
        "key <= query",
        "key <= query + 1",
        "causal_diagonal",
        (("bug_key_too_many",),),
    ),
    Bug(
        "causal mask off by one, too few",
        ("v01", "v02", "v05"),
        CAUSAL,
        "key <= query",
        "key < query",
        "causal_diagonal",
        (("bug_misses_own_key",),),
    ),
    Bug(
        "causal mask forgotten inside the visited tiles",
        ("v02",),
        CAUSAL,
        "(!IS_CAUSAL || key <= query)",
        "true",
        "causal_mask",
        (("bug_causal_by_tiles",),),
    ),
    Bug(
        "one head's K one head early",
        ("v02", "v05"),
        ODD,
        LOAD_K,
        "load_tile<BLOCK_N>(k_smem, k + (head_index == 2 ? kv_head / 2 : kv_head), n0, seqlen_kv);",
        "head_stride",
        (("bug_head_read", "K"), ("bug_head_read", "one head before")),
    ),
    Bug(
        "one head's V a row too far on",
        ("v01", "v02"),
        ODD,
        LOAD_V,
        "load_tile<BLOCK_N>(v_smem, v + kv_head + (head_index == 1) * HEAD_DIM, n0, seqlen_kv);",
        "head_stride",
        (("bug_head_read", "V"), ("bug_head_read", "one row too")),
    ),
    Bug(
        "a NaN row",
        ("v01", "v02"),
        ODD,
        "const float inv_l = 1.0f /",
        "const float inv_l = (query == 17 && blockIdx.y == 1 ? INFINITY - INFINITY : 1.0f) /",
        "nan_row",
        (("nan_in", "row 17 of batch 0, head 1", "every column"),),
    ),
    Bug(
        # Memory past the end is NaN; the kernel stores results computed from it.
        "a NaN from past the end",
        ("v01", "v02"),
        ODD,
        "row < length",
        "row <= length",
        "nan_row",
        (("nan_in", "batch 0, head 2"),),
    ),
    Bug(
        "a last row that is not stored",
        ("v01", "v02"),
        ODD,
        "query < seqlen) {",
        "query < seqlen - 1) {",
        "unwritten",
        (("unwritten_part", "row 199 of every head, every column"),),
    ),
    Bug(
        "online softmax without the rescale",
        ("v01", "v02"),
        LONG,
        "*= correction;",
        "*= 1.0f;",
        "online_rescale",
        (("bug_no_online_rescale",),),
    ),
    Bug(
        "scores that are not scaled",
        ("v01", "v02", "v05"),
        ODD,
        "softmax_scale * LOG2_E",
        "LOG2_E",
        "softmax_scale",
        (("bug_no_scale",),),
    ),
    Bug(
        "decode: chunks that overlap by a tile",
        ("v05",),
        DECODE,
        "(split + 1) * chunk_rows)",
        "(split + 1) * chunk_rows + BLOCK_N)",
        "kv_split_seam",
        (("bug_first_of_others_twice", "key tile", "split"),),
    ),
    Bug(
        "decode: fusion without the rescale",
        ("v05", "v06"),
        DECODE,
        "const float weight = fast_exp2((m_split - m) * scale_log2);",
        "const float weight = 1.0f;",
        "fusion_rescale",
        (("bug_fusion_no_rescale",),),
    ),
    Bug(
        "decode: fusion that skips the last split",
        ("v05",),
        DECODE,
        "for (int split = 0; split < NUM_SPLITS; split++) {\n        const size_t partial_row",
        "for (int split = 0; split < NUM_SPLITS - 1; split++) {\n        const size_t partial_row",
        "split_missing",
        (("bug_leaving_out", "split 3", "384", "511"),),
    ),
    Bug(
        "decode: missing tail mask",
        ("v01", "v05"),
        ODD_DECODE,
        VISIBLE,
        "(!IS_CAUSAL || key <= query)",
        "tail_mask",
        (("bug_missing_tail_mask", "56", "KV = 200"),),
    ),
    Bug(
        "decode: K and V found with the stride of Q",
        ("v05", "v08"),
        DECODE,
        "* seqlen_kv * HEAD_DIM;",
        "* seqlen * HEAD_DIM;",
        "head_stride",
        (("bug_head_read", "K and V"), ("stride_of_q",)),
    ),
    Bug(
        "decode: keys counted by the queries",
        ("v02",),
        ODD_DECODE,
        ": seqlen_kv;",
        ": seqlen;",
        "key_count",
        (("key_loop_that_ends",), ("bug_keys_by_queries", "64", "199")),
    ),
    Bug(
        "neighbouring columns of d swapped",
        ("v02",),
        ODD,
        "to_element2(acc_rmem[j].x * inv_l, acc_rmem[j].y * inv_l)",
        "to_element2(acc_rmem[j].y * inv_l, acc_rmem[j].x * inv_l)",
        "columns_of_d",
        (("holds_other", "column 0", "column 1"),),
    ),
    Bug(
        "the warps' partial results merged without weights",
        ("v12",),
        Problem(1, 2, 113, 64),
        "m = fmaxf(m, m_smem[w * BLOCK_M + row0 + i * 8]);",
        "m = fmaxf(m, m);",
        "fusion_rescale",
        (("fusion_of", "4", "warps"), ("bug_fusion_no_rescale",)),
    ),
    Bug(
        "a row sum over half of the lanes",
        ("v08",),
        ODD,
        "return x + __shfl_xor_sync(FULL_WARP, x, 2);",
        "return x;",
        "row_factor",
        (("rows_by_factor",), ("row_sum_l",)),
        header="rows.cuh",
    ),
    Bug(
        "a row maximum over half of the lanes",
        ("v08",),
        ODD,
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
        "return x;",
        "lane_maximum",
        (("against_the_rest", "keys 0–3"), ("row_maximum_of_lanes",)),
        header="rows.cuh",
    ),
    Bug(
        "fragments of K exchanged",
        ("v08",),
        ODD,
        "q_rmem[step], k_rmem[0], k_rmem[1]);",
        "q_rmem[step], k_rmem[1], k_rmem[0]);",
        "mma_fragment",
        (("bug_k_keys_swapped",),),
    ),
    Bug(
        "one key too many of a long causal row",
        ("v02",),
        Problem(1, 1, 1023, 64, causal=True),
        "key <= query",
        "key <= query + 1",
        "causal_diagonal",
        (("bug_key_too_many",),),
    ),
    Bug(
        "a counter that is not reset for the next launch",
        ("v06",),
        LONG,
        "if (threadIdx.x == 0) *tile_arrivals = 0;",
        "",
        "not_repeatable",
        (("arrivals_left", "arrivals"),),
    ),
    Bug(
        "S kept in 16 bits",
        ("v01",),
        ODD,
        "s_row[n] = score;",
        "s_row[n] = to_float(to_element(score));",
        "score_precision",
        (("rounded_before_scale", "float16 before"), ("keep_s_in_float",)),
        kind="extreme",
    ),
    Bug(
        "l summed in 16 bits",
        ("v01",),
        ODD,
        "l += p;",
        "l = to_float(to_element(l + p));",
        "row_factor",
        (("lost_in_row_sum",),),
    ),
    Bug(
        "the maximum of the last key alone",
        ("v05",),
        ODD,
        "m_new = fmaxf(m_new, score);",
        "m_new = fmaxf(m, score);",
        "tail_tile",
        (("maximum_of_chunk", "split"),),
    ),
    Bug(
        "the rows of one warp",
        ("v02",),
        Problem(1, 2, 256, 64),
        "const float inv_l = 1.0f /",
        "const float inv_l = (threadIdx.x / 32 == 3 ? 1.25f : 1.0f) /",
        "rows_of_one_warp",
        (("rows_of_warp_wrong", "rows 24–31", "warp 3"),),
    ),
)


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def executed(cpu: CpuBackend, variant_id: str, bug: Bug | None, folder: Path) -> Correctness:
    """Return the verdict on a variant, with the bug or unchanged."""
    variant = by_id(variant_id)
    # Without a bug: the problem of one of its bugs.
    shown = bug or next(b for b in BUGS if variant_id in b.variants)
    problem = shown.problem
    plan = make_plan(variant, problem, {**variant.default_config(), **(bug.config if bug else {})})
    if bug is not None:
        for file in (variant.source, *KERNELS_DIR.glob("*.cuh")):
            shutil.copy(file, folder)
        changed = folder / (bug.header or variant.source.name)
        text = changed.read_text()
        text = text if spans(text, bug.old) else plain(text)
        changed.write_text(replaced(text, bug.old, bug.new)[0])
        plan = dataclasses.replace(plan, source=folder / variant.source.name)
    inputs = make_inputs(problem, kind=shown.kind)
    result = cpu.run(plan, inputs, RunOptions())
    assert result.status is Status.PASSED, result.reason
    return check_output(inputs, result, plan=plan)


@pytest.mark.parametrize(
    "variant_id", one_in(3, sorted({v for b in BUGS for v in b.variants}), offset=1)
)
def test_without_a_bug_there_is_no_finding(
    cpu: CpuBackend, variant_id: str, tmp_path: Path
) -> None:
    found = executed(cpu, variant_id, None, tmp_path)
    assert found.passed, found.reason
    assert found.findings == ()


@pytest.mark.parametrize(
    ("variant_id", "bug"),
    one_in(13, [pytest.param(v, b, id=f"{v}-{b.name}") for b in BUGS for v in b.variants], slow=48),
)
def test_the_findings_name_the_bug(
    cpu: CpuBackend, variant_id: str, bug: Bug, tmp_path: Path
) -> None:
    found = executed(cpu, variant_id, bug, tmp_path)
    assert not found.passed
    sentences = [f.sentence for f in found.findings if f.pattern == bug.pattern]
    assert sentences, found.findings
    for phrase in bug.phrases:
        assert any(says(s, *phrase) for s in sentences), sentences
    # No second cause is named: at most one finding matches the whole output.
    assert sum(says(f.sentence, "the_output_matches") for f in found.findings) <= 1
