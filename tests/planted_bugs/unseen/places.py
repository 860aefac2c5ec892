"""Correct values in a wrong place: addressing, fragments, swizzles, descriptors, stores."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.causes import (
    BATCH_AND_HEAD,
    NEVER_WRITTEN,
    OUT_OF_BOUNDS,
    OVER_D,
    QUERY,
    RACE,
    WRONG_QUERY,
)
from planted_bugs.unseen.bug import Unseen, rows

_WIDE = (Problem(1, 2, 200, 128),)
_LONGER_KV = (Problem(1, 2, 77, 64, seqlen_kv=200),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)


PLACES: tuple[Unseen, ...] = (
    # ---- addressing ----
    *rows(
        "addressing",
        (
            "stride of K and V is Q's",
            ("v01", "v04", "v10"),
            "* seqlen_kv * HEAD_DIM;",
            "* seqlen * HEAD_DIM;",
            ("stride",),
        ),
        on=_LONGER_KV,
    ),
    *rows(
        "addressing",
        (
            "scores of other rows than they are stored to",
            ("v03", "v04"),
            "q_smem + (group + i * ROW_GROUPS)",
            "q_smem + (group * ROWS_PER_THREAD + i)",
            WRONG_QUERY,
        ),
        (
            "K and V a row too far on",
            ("v15", "v16", "v18"),
            "tile * BLOCK_N, kv_head",
            "tile * BLOCK_N + 1, kv_head",
            ("too_far_on",),
        ),
        (
            "every warp reads the first warp's Q",
            ("v07",),
            "q_smem + warp * WARP_ROWS * ROW_STRIDE + d",
            "q_smem + d",
            WRONG_QUERY,
        ),
        (
            "every group reads the first group's Q",
            ("v16", "v17"),
            "shared_address(q_smem) + group * GROUP_ROWS * ROW_BYTES",
            "shared_address(q_smem)",
            WRONG_QUERY,
        ),
        (
            "O of two rounds ago stored where the last belongs",
            ("v19", "v20"),
            "query_tile(round - 2);",
            "query_tile(round - 1);",
            (*WRONG_QUERY, *NEVER_WRITTEN),
        ),
        (
            "the first 64 columns of V",
            ("v02",),
            "pair_at(v_smem + n",
            "pair_at(k_smem + n",
            (("bug_other_operand", "K", "V"),),
        ),
        config={},
    ),
    *rows(
        "addressing",
        (
            "batch and head exchanged",
            ("v17",),
            "m0, head,\n                     batch);",
            "m0, batch,\n                     head);",
            BATCH_AND_HEAD,
        ),
        on=(Problem(3, 3, 77, 64),),
    ),
    *rows(
        "addressing",
        (
            "K/V head by the remainder",
            ("v07", "v11", "v13", "v19"),
            "/ (num_heads / num_heads_kv)",
            "% num_heads_kv",
            ("head % num_heads_kv", "K/V head"),
        ),
        (
            "rows packed by head",
            ("v14",),
            "row % group;\n        return head * seqlen + row / group;",
            "row / seqlen;\n        return head * seqlen + row / group;",
            (*QUERY, "rows", "head"),
        ),
        shapes="gqa",
    ),
    *rows(
        "addressing",
        (
            "V a row further than K",
            ("v21",),
            "v + start, seqlen_kv",
            "v + start + HEAD_DIM, seqlen_kv",
            (("bug_head_read", "V"), "page"),
        ),
        (
            "head beside head in the pages, as outside of them",
            ("v21",),
            "((size_t)page * num_heads_kv + kv_head_index) * PAGE_SIZE",
            "((size_t)page + kv_head_index) * PAGE_SIZE",
            ("page", "head"),
        ),
        on=_MANY_KEYS,
    ),
    # ---- fragments, swizzles, descriptors ----
    *rows(
        "fragments",
        (
            "halves of the second K exchanged",
            ("v08", "v10"),
            "q_rmem[step], k_rmem[2], k_rmem[3])",
            "q_rmem[step], k_rmem[3], k_rmem[2])",
            ("fragment",),
        ),
        (
            "ldmatrix of V by other lanes",
            ("v08", "v09"),
            "lane / 16 * 8;\n                unsigned v_rmem",
            "lane / 8 % 2 * 8;\n                unsigned v_rmem",
            ("fragment", "column"),
        ),
        (
            "Q gathered in another order",
            ("v12",),
            "upper.z, lower.z, upper.w, lower.w",
            "upper.z, upper.w, lower.z, lower.w",
            ("fragment",),
        ),
        (
            "P packed in another order",
            ("v11",),
            "[tile % 2 * 2 + r] = pack",
            "[tile % 2 + 2 * r] = pack",
            ("fragment",),
        ),
        (
            "Q's registers in another order",
            ("v14",),
            "q_rmem[step][half * 2 + r]",
            "q_rmem[step][r * 2 + half]",
            ("fragment",),
        ),
        (
            "rows of P exchanged",
            ("v15", "v17"),
            "p_rmem[i / 8][i / 2 % 4] = pack(left",
            "p_rmem[i / 8][i / 2 % 4 ^ 1] = pack(left",
            ("fragment", "rows"),
        ),
        (
            "rows of P exchanged",
            ("v19",),
            "p_rmem[i / 8][i / 2 % 4] = pack(s_rmem",
            "p_rmem[i / 8][i / 2 % 4 ^ 1] = pack(s_rmem",
            ("fragment", "rows"),
        ),
        (
            "K by rows in wmma",
            ("v07",),
            "element, wmma::col_major>",
            "element, wmma::row_major>",
            ("fragment", "transposed"),
        ),
        (
            "swizzle where K is read alone is gone",
            ("v09", "v10"),
            "k_smem + swizzled(row, d)",
            "k_smem + row * HEAD_DIM + d",
            ("swizzle",),
        ),
        (
            "another swizzle where V is read",
            ("v09",),
            "v_smem + swizzled(row, d)",
            "v_smem + (swizzled(row, d) ^ 8)",
            ("swizzle",),
        ),
        (
            "O stored without its swizzle",
            ("v15", "v18", "v20"),
            "column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8)",
            "column % COLUMNS / 8",
            ("swizzle",),
        ),
        (
            "O's chunks by a sum in place of an XOR",
            ("v22",),
            "box_smem ^ step % STEPS * 32",
            "(box_smem & ~127u) + (box_smem + step % STEPS * 32) % 128",
            ("swizzle", "column"),
        ),
    ),
    *rows(
        "fragments",
        (
            "boxes of V as far apart as Q's",
            ("v16", "v17"),
            "BLOCK_N * ROW_BYTES));",
            "2 * BLOCK_N * ROW_BYTES));",
            ("descriptor", "column"),
        ),
        (
            "second box of Q and K a row further",
            ("v15", "v18"),
            "step / STEPS * ROWS * ROW_BYTES",
            "step / STEPS * ROW_BYTES",
            (*OVER_D, "descriptor"),
        ),
        config={"block_n": 64},
        on=_WIDE,
    ),
    # ---- stores ----
    *rows(
        "store",
        (
            "last pair of a thread not stored",
            ("v02",),
            "PAIRS_PER_THREAD; j++) {\n            element* pair",
            "PAIRS_PER_THREAD - 1; j++) {\n            element* pair",
            NEVER_WRITTEN,
        ),
        (
            "half of the columns stored",
            ("v08", "v10"),
            "tile < HEAD_DIM / 8; tile++) {\n            *reinterpret",
            "tile < HEAD_DIM / 16; tile++) {\n            *reinterpret",
            NEVER_WRITTEN,
        ),
        (
            "stored a row further on",
            ("v04", "v08", "v13"),
            "q_head + (size_t)query * HEAD_DIM",
            "q_head + (size_t)(query + 1) * HEAD_DIM",
            (*OUT_OF_BOUNDS, "row"),
        ),
        (
            "every group stores to the first one's rows",
            ("v16", "v17"),
            "m0 + group * GROUP_ROWS, head, batch);",
            "m0, head, batch);",
            (*NEVER_WRITTEN, *RACE),
        ),
        (
            "row past the end stored",
            ("v07",),
            "if (query >= seqlen) return;",
            "if (query > seqlen) return;",
            (*OUT_OF_BOUNDS, *RACE, "row"),
        ),
    ),
)
