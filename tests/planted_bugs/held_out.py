"""A second set of bugs, for the checker after it was tuned on the first (`unseen`).

Written before any of it was run; the same rules hold.
"""

from __future__ import annotations

from engine.attention.problem import Problem
from engine.cuda_on_host.error_kinds import ErrorKind
from planted_bugs.causes import (
    COPY,
    FUSION,
    GIVEN_BACK,
    LAST_KEY,
    LAST_KEY_TILE,
    LEFT_OUT,
    MASK,
    MAXIMUM,
    NAMED_BARRIER,
    NEVER_WRITTEN,
    OUT_OF_BOUNDS,
    OVER_D,
    PHASE,
    PRECISION,
    PRODUCT_IN_32_BITS,
    QUERY,
    RESCALE,
    ROW_SUM,
)
from planted_bugs.unseen import Unseen, rows

_LONGER_KV = (Problem(1, 2, 77, 64, seqlen_kv=200),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_REUSED = {"block_n": 64}
_SEVERAL = {"num_ctas": 4, "block_n": 64}


HELD_OUT: tuple[Unseen, ...] = (
    *rows(
        "mask",
        (
            "row tiles masked as the first",
            ("v11",),
            ", query0 + t * 16, pair, LENGTHS);",
            ", query0, pair, LENGTHS);",
            MASK,
        ),
        (
            "every second lane misses its own key",
            ("v05", "v06"),
            "key <= query)",
            "key <= query - part % 2)",
            MASK,
        ),
        (
            "both rows of a lane masked as the first",
            ("v12",),
            "m0 + t * 16 + group + i / 2 * 8;",
            "m0 + t * 16 + group;",
            MASK,
        ),
        (
            "query rows counted from the CTA's second warp",
            ("v08",),
            "const int query = query0 + i / 2 * 8;",
            "const int query = query0 + 16 + i / 2 * 8;",
            MASK,
        ),
        shapes="causal",
    ),
    *rows(
        "mask",
        (
            "last key masked",
            ("v06", "v20"),
            "key < seqlen_kv && ",
            "key < seqlen_kv - 1 && ",
            LAST_KEY,
        ),
    ),
    *rows(
        "key loop",
        (
            "loop ends a tile early",
            ("v01", "v04"),
            "n0 < kv_end;",
            "n0 < kv_end - BLOCK_N;",
            LEFT_OUT,
        ),
    ),
    *rows(
        "key loop",
        (
            "warps step a tile too far",
            ("v14", "v21"),
            "tile < end_tile; tile += NUM_WARPS)",
            "tile < end_tile; tile += NUM_WARPS + 1)",
            (*LEFT_OUT, *COPY, "key tile"),
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "softmax",
        ("maximum not kept", ("v04",), "m_rmem[i] = m_new;", "", (*MAXIMUM, *LAST_KEY_TILE)),
        (
            "l rescaled twice",
            ("v09", "v16"),
            "l_rmem[r] *= correction[r];",
            "l_rmem[r] *= correction[r] * correction[r];",
            RESCALE,
        ),
        (
            "scale a tenth too large",
            ("v16", "v02"),
            "softmax_scale * LOG2_E;",
            "softmax_scale * 1.1f * LOG2_E;",
            (("bug_scores_by_factor", "1.1"),),
        ),
        (
            "half of the scale",
            ("v21", "v06"),
            "softmax_scale * LOG2_E;",
            "softmax_scale * 0.5f * LOG2_E;",
            (("bug_scores_by_factor", "0.5"),),
        ),
        (
            "last 8 columns left out of the scores",
            ("v03",),
            "d < HEAD_DIM; d += VECTOR) {\n            float k_rmem",
            "d < HEAD_DIM - VECTOR; d += VECTOR) {\n            float k_rmem",
            OVER_D,
        ),
        (
            "first 16 columns left out of the scores",
            ("v07",),
            "for (int d = 0; d < HEAD_DIM; d += 16) {\n                LeftFragment",
            "for (int d = 16; d < HEAD_DIM; d += 16) {\n                LeftFragment",
            OVER_D,
        ),
        (
            "every second key of a thread in l",
            ("v05",),
            "            l += p;",
            "            l += n / THREADS_PER_ROW % 2 ? p : 0.0f;",
            ROW_SUM,
        ),
    ),
    *rows(
        "softmax",
        (
            "sum over half of the lanes",
            ("v17", "v20"),
            "return x + __shfl_xor_sync(FULL_WARP, x, 2);",
            "return x;",
            ROW_SUM,
        ),
        (
            "maximum over half of the lanes",
            ("v15", "v21"),
            "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
            "return x;",
            MAXIMUM,
        ),
        header="rows.cuh",
    ),
    *rows(
        "fusion",
        (
            "fusion begins at the second split",
            ("v05",),
            "for (int split = 0; split < NUM_SPLITS; split++) {\n        const size_t",
            "for (int split = 1; split < NUM_SPLITS; split++) {\n        const size_t",
            (("bug_leaving_out", "split 0"), ("bug_counting_twice", "split 0")),
        ),
        (
            "maximum of the first row for all",
            ("v05",),
            "m_partial[split * num_rows + row]",
            "m_partial[split * num_rows]",
            (*MAXIMUM, *FUSION, "m_i"),
        ),
    ),
    *rows(
        "fusion",
        (
            "sum of one lane left for the merge",
            ("v14", "v21"),
            "l_smem[warp * BLOCK_M + row] = l;",
            "l_smem[warp * BLOCK_M + row] = l_rmem[r];",
            ROW_SUM,
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "addressing",
        (
            "K copied in V's place",
            ("v15",),
            "&v_map, full + stage",
            "&k_map, full + stage",
            (("bug_other_operand", "K", "V"),),
        ),
        (
            "K copied in V's place",
            ("v22",),
            "&v_map, v_full",
            "&k_map, v_full",
            (("bug_other_operand", "K", "V"),),
        ),
        (
            "copies a row too far on",
            ("v10",),
            "(first_row + row) * HEAD_DIM + d,",
            "(first_row + row + 1) * HEAD_DIM + d,",
            (*OUT_OF_BOUNDS, "too_far_on"),
        ),
        (
            "query tiles counted from 1",
            ("v19", "v20"),
            "found.m0 = tile_index * BLOCK_M;",
            "found.m0 = (tile_index + 1) * BLOCK_M;",
            (*QUERY, *NEVER_WRITTEN),
        ),
    ),
    *rows(
        "addressing",
        (
            "Q where K begins",
            ("v02", "v08"),
            "q + q_head",
            "q + kv_head",
            ("stride", ("bug_head_read", "Q")),
        ),
        on=_LONGER_KV,
    ),
    *rows(
        "addressing",
        (
            "query heads interleaved",
            ("v14",),
            "kv_head_index * group + row % group",
            "kv_head_index + row % group * num_heads_kv",
            ("head",),
        ),
        shapes="gqa",
    ),
    *rows(
        "fragments",
        (
            "swizzle where V is read is gone",
            ("v09", "v10"),
            "v_smem + swizzled(row, d)",
            "v_smem + row * HEAD_DIM + d",
            ("swizzle",),
        ),
        (
            "swizzle where K is read is gone",
            ("v14",),
            "k_smem + swizzled(row, step * 16 + lane / 8 % 2 * 8)",
            "k_smem + row * HEAD_DIM + step * 16 + lane / 8 % 2 * 8",
            ("swizzle",),
        ),
        (
            "swizzle of the copies is gone",
            ("v11",),
            "2 * swizzled(copy_row, copy_d)",
            "2 * (copy_row * HEAD_DIM + copy_d)",
            ("swizzle",),
        ),
        (
            "keys of P 8 apart exchanged",
            ("v16", "v17"),
            "p_rmem[i / 8][i / 2 % 4] = pack(left",
            "p_rmem[i / 8][i / 2 % 4 ^ 2] = pack(left",
            ("fragment",),
        ),
        (
            "rows of the right half of P exchanged",
            ("v08",),
            "pack(right[0], right[1]), pack(right[2], right[3])",
            "pack(right[2], right[3]), pack(right[0], right[1])",
            ("fragment",),
        ),
        (
            "halves of Q exchanged",
            ("v21",),
            "q_rmem[step][half * 2 + r]",
            "q_rmem[step][(1 - half) * 2 + r]",
            ("fragment",),
        ),
        (
            "pairs of columns stored elsewhere",
            ("v18", "v15"),
            "chunk * 16 + pair * 2)",
            "chunk * 16 + (pair * 2 ^ 4))",
            ("column",),
        ),
    ),
    *rows(
        "precision",
        (
            "O rounded every tile",
            ("v08", "v10"),
            "acc_rmem[tile][i] *= correction[i / 2];",
            "acc_rmem[tile][i] = to_float(to_element(acc_rmem[tile][i] * correction[i / 2]));",
            PRECISION,
        ),
        (
            "O rounded every tile",
            ("v07",),
            "o_smem[row * O_STRIDE + d] *= correction;",
            "o_smem[row * O_STRIDE + d] = "
            "to_float(to_element(o_smem[row * O_STRIDE + d] * correction));",
            PRECISION,
        ),
    ),
    *rows(
        "barrier",
        (
            "a warp barrier for one lane of a row",
            ("v02",),
            "        __syncwarp();",
            "        if (part == 0) __syncwarp();",
            ("__syncwarp", "lanes"),
        ),
        (
            "every group hands on the first turn",
            ("v17", "v19"),
            "if (is_last) named_barrier_arrive(next_turn",
            "named_barrier_arrive(next_turn",
            NAMED_BARRIER,
        ),
        (
            "barrier of two groups for one",
            ("v15", "v16"),
            "named_barrier(1 + group, WARPGROUP);",
            "named_barrier(1 + group, 3 * WARPGROUP);",
            NAMED_BARRIER,
        ),
    ),
    *rows(
        "copy",
        (
            "first K waited for with one group too many",
            ("v11",),
            "cp_async_wait<STAGES - 1>();",
            "cp_async_wait<STAGES>();",
            (ErrorKind.COPY_NOT_COMPLETE,),
        ),
        (
            "copies in no group",
            ("v21", "v14"),
            "        cp_async_commit();\n    };",
            "    };",
            (ErrorKind.COPY_NOT_COMPLETE, "cp.async"),
        ),
    ),
    *rows(
        "mbarrier",
        (
            "the producer's phase of every tile",
            ("v16", "v18"),
            "mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);",
            "mbarrier_wait(empty + stage, tile % 2 ^ 1);",
            PHASE,
        ),
        (
            "a phase of every tile",
            ("v17", "v18"),
            "return tile / STAGES % 2; }",
            "return tile % 2; }",
            PHASE,
        ),
        (
            "Q in its second phase",
            ("v17",),
            "mbarrier_wait(q_full, 0);",
            "mbarrier_wait(q_full, 1);",
            PHASE,
        ),
        (
            "32 arrivals for one",
            ("v15",),
            "mbarrier_init(full + stage, 1)",
            "mbarrier_init(full + stage, 32)",
            (("mbarrier_arrivals_missing", "32"), ("phase_left_open", "32")),
        ),
        (
            "V counts on K's mbarrier",
            ("v16", "v17"),
            "load_tile(&v_map, v_ring, v_full,",
            "load_tile(&v_map, v_ring, k_full,",
            PHASE,
        ),
        config=_REUSED,
    ),
    *rows(
        "mbarrier",
        (
            "K's last stage given back",
            ("v19",),
            "mbarrier_arrive(k_empty + stage);",
            "mbarrier_arrive(k_empty + last_stage);",
            (*PHASE, *GIVEN_BACK),
        ),
        config=_SEVERAL,
    ),
    *rows(
        "wgmma",
        (
            "V given back while it is read",
            ("v19", "v20"),
            "        wgmma_wait<0>(acc_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);",
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);\n"
            "        wgmma_wait<0>(acc_rmem);",
            GIVEN_BACK,
        ),
        (
            "O stored while it is multiplied",
            ("v20", "v19"),
            "    wgmma_wait<0>(acc_rmem);\n    store_rows(round - 1, inv_l);",
            "    store_rows(round - 1, inv_l);\n    wgmma_wait<0>(acc_rmem);",
            (ErrorKind.RUNNING_WGMMA_REGISTERS,),
        ),
        config=_SEVERAL,
    ),
    *rows(
        "registers",
        (
            "consumers give in place of taking",
            ("v16", "v19"),
            "more_registers<CONSUMER_REGISTERS>();",
            "fewer_registers<CONSUMER_REGISTERS>();",
            ("setmaxnreg",),
        ),
        (
            "consumers take too many",
            ("v19",),
            "CONSUMERS == 2 ? 232 : 160;",
            "CONSUMERS == 2 ? 240 : 160;",
            ("setmaxnreg",),
        ),
    ),
    *rows(
        "store",
        (
            "stored a row too far on",
            ("v15", "v16"),
            "box * COLUMNS, m0 + group * GROUP_ROWS",
            "box * COLUMNS, m0 + 1 + group * GROUP_ROWS",
            ("row",),
        ),
    ),
    *rows(
        "overflow",
        (
            "index of a K/V head in 32 bits",
            ("v10", "v07"),
            "const size_t kv_index",
            "const int kv_index",
            PRODUCT_IN_32_BITS,
        ),
        (
            "index of a query head in 32 bits",
            ("v07", "v10"),
            "const size_t q_index = (size_t)blockIdx.z",
            "const int q_index = blockIdx.z",
            PRODUCT_IN_32_BITS,
        ),
    ),
)
