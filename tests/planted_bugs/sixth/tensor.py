"""Bugs in the rungs of `mma`, v08 to v14 and v21, and in what a problem's features add there."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.causes import (
    BEYOND,
    COPY,
    DIAGONAL,
    EVERY,
    LANES,
    LAST_KEY,
    LEFT_OUT,
    LENGTH,
    MASK,
    MAXIMUM,
    OTHER_TILE,
    OUT_OF_BOUNDS,
    OVERWRITTEN,
    PADDING,
    PAST_THE_END,
    PIECE,
    POSITION,
    RESCALE,
    ROW_SUM,
    SAME_PLACE,
    SEQUENCE,
    SPLITS,
    TWICE,
    UNINITIALISED,
    UNORDERED,
    UNWRITTEN,
    WEIGHT,
    WEIGHTS,
    ZERO,
)
from planted_bugs.unseen import Unseen, rows

_DECODE = (Problem(2, 4, 5, 64, num_heads_kv=2, seqlen_kv=300),)
_ROWS = (Problem(1, 4, 20, 64, num_heads_kv=2, seqlen_kv=200),)
_WHOLE_PAGES = (Problem(2, 2, 4, 64, seqlen_kv=256),)
_WINDOW = (Problem(1, 2, 90, 64, causal=True, window=20),)
_LENGTHS = (Problem(2, 2, 100, 64, seqlens=(37, 100)),)
_LENGTHS_GQA = (Problem(2, 4, 100, 64, num_heads_kv=2, seqlens=(37, 100)),)
_OFFSET = (Problem(1, 2, 60, 64, causal=True, seqlen_kv=150),)
_SHARED_TILES = (Problem(1, 2, 300, 64),)

TENSOR: tuple[Unseen, ...] = (
    *rows(
        "fragments",
        (
            "the right eight keys weigh as the left",
            ("v08",),
            "const float(&right)[4] = s_rmem[2 * key_step + 1];",
            "const float(&right)[4] = s_rmem[2 * key_step];",
            (*LANES, *WEIGHT),
        ),
        (
            "tiles are stored by a swizzle of two rows",
            ("v09",),
            "*reinterpret_cast<uint4*>(tile_smem + swizzled(row, d)) = vector;",
            "*reinterpret_cast<uint4*>(tile_smem + row * HEAD_DIM + (d ^ row / 2 % 8 * VECTOR)) = "
            "vector;",
            (*LANES, "swizzle"),
        ),
        (
            "K's lanes of ldmatrix count to 16",
            ("v10",),
            "const int row = key_step * 16 + lane / 16 * 8 + lane % 8;",
            "const int row = key_step * 16 + lane % 16;",
            LANES,
        ),
        (
            "a row's last two columns exchanged",
            ("v12",),
            "o_rmem[j][2] += o.z, o_rmem[j][3] += o.w;",
            "o_rmem[j][2] += o.w, o_rmem[j][3] += o.z;",
            LANES,
        ),
        (
            "halves of a step of V exchanged",
            ("v11",),
            "2 * (K_TILE + swizzled(v_row, lane / 16 * 8));",
            "2 * (K_TILE + swizzled(v_row, (lane / 16 ^ 1) * 8));",
            LANES,
        ),
        (
            "merged columns side by side",
            ("v14",),
            "reinterpret_cast<const float2*>(o_row + 2 * (part + j * MERGE_THREADS));\n"
            "            merged_rmem",
            "reinterpret_cast<const float2*>(o_row + 2 * (part * MERGE_PAIRS + j));\n"
            "            merged_rmem",
            LANES,
        ),
    ),
    *rows(
        "softmax",
        (
            "sums by columns in place of rows",
            ("v09",),
            "l_rmem[i / 2] += s_rmem[tile][i];",
            "l_rmem[i % 2] += s_rmem[tile][i];",
            ROW_SUM,
        ),
        (
            "the left half of O is rescaled",
            ("v09",),
            "tile < HEAD_DIM / 8; tile++) {\n#pragma unroll\n"
            "            for (int i = 0; i < 4; i++) acc_rmem[tile][i] *= correction[i / 2];",
            "tile < HEAD_DIM / 16; tile++) {\n#pragma unroll\n"
            "            for (int i = 0; i < 4; i++) acc_rmem[tile][i] *= correction[i / 2];",
            RESCALE,
        ),
        (
            "the first rows' correction for all of a warp's",
            ("v11",),
            "rescale(acc_rmem[t], correction[t]);",
            "rescale(acc_rmem[t], correction[0]);",
            RESCALE,
        ),
        (
            "both rows' sums in the first",
            ("v13",),
            "l_rmem[r] += sum;",
            "l_rmem[0] += sum;",
            ROW_SUM,
        ),
        (
            "the sum of every second key",
            ("v12",),
            "pack(1.0f, 1.0f);",
            "pack(1.0f, 0.0f);",
            ROW_SUM,
        ),
        (
            "a maximum that looks at every second tile of keys",
            ("v08",),
            "            for (int i = 0; i < 4; i++) m_new[i / 2] = fmaxf(m_new[i / 2], "
            "s_rmem[tile][i]);",
            "            for (int i = 0; i < 4; i++) m_new[i / 2] = fmaxf(m_new[i / 2], "
            "s_rmem[tile / 2 * 2][i]);",
            MAXIMUM,
        ),
        (
            "the second exponential is not relative",
            ("v11",),
            "fast_exp2(scores[2 * r + 1] * scale_log2 - m_scaled[r]);",
            "fast_exp2((scores[2 * r + 1] - scores[2 * r]) * scale_log2);",
            (*LANES, *MAXIMUM, *EVERY, *WEIGHT),
        ),
    ),
    *rows(
        "copy",
        (
            "a group for each tile that is there",
            ("v10",),
            "        }\n        cp_async_commit();\n    };",
            "            cp_async_commit();\n        }\n    };",
            ("cp.async", "commit", "wait", "group"),
        ),
        (
            "the stage that is read is refilled",
            ("v10",),
            "start_copies(stage == 0 ? STAGES - 1 : stage - 1, n0",
            "start_copies(stage, n0",
            (*UNORDERED, *OVERWRITTEN, "stage", "cp.async"),
        ),
        (
            "V into the next stage's K",
            ("v10",),
            "load_tile<BLOCK_N>(ring + stage * STAGE + K_TILE, v + kv_head, n,",
            "load_tile<BLOCK_N>(ring + (stage + 1) * STAGE, v + kv_head, n,",
            (*UNWRITTEN, *UNORDERED, *OUT_OF_BOUNDS, "stage"),
        ),
        (
            "V's end is counted from a later tile",
            ("v11",),
            "start_v(v_place, lane_source, next + (STAGES - 2) * BLOCK_N);",
            "start_v(v_place, lane_source, next + STAGES * BLOCK_N);",
            (*LEFT_OUT, *ZERO, *MASK, *PADDING, *LAST_KEY, *PAST_THE_END, "V"),
        ),
        (
            "no wait before the last product",
            ("v13",),
            "cp_async_wait<0>();",
            "cp_async_wait<STAGES - 1>();",
            (*COPY, "cp.async", "wait"),
        ),
        (
            "V of the tile before the next",
            ("v14",),
            "load_tile(ring + (2 * stage + 1) * TILE, v_head + start, ",
            "load_tile(ring + (2 * stage + 1) * TILE, v_head + start - (tile > 0) * TILE, ",
            (*OTHER_TILE, "V"),
        ),
    ),
    *rows(
        "mask",
        (
            "rows of the second tile of a warp eight on",
            ("v11",),
            ", query0 + t * 16, pair, LENGTHS);",
            ", query0 + t * 8, pair, LENGTHS);",
            (*DIAGONAL, *MASK),
        ),
        (
            "keys of a split warp masked by another's",
            ("v12",),
            "const int key = n0 + tile * 8 + pair + i % 2;",
            "const int key = tile * 8 + pair + i % 2;",
            (*DIAGONAL, *MASK),
        ),
        shapes="causal",
    ),
    *rows(
        "addressing",
        (
            "sequences of K and V as far apart as of Q",
            ("v08", "v11"),
            "(size_t)blockIdx.z * num_heads_kv + blockIdx.y / ",
            "(size_t)blockIdx.z * num_heads + blockIdx.y / ",
            (*SEQUENCE, *BEYOND, "head"),
        ),
        (
            "K/V heads to the nearest",
            ("v12",),
            "(int)((blockIdx.y + 0.5f) * kv_heads_per_head);",
            "(int)(blockIdx.y * kv_heads_per_head + 0.5f);",
            (*BEYOND, "head"),
        ),
        shapes="gqa",
    ),
    *rows(
        "addressing",
        (
            "V a tile behind K",
            ("v08",),
            "load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);",
            "load_tile<BLOCK_N>(v_smem, v + kv_head, n0 == 0 ? 0 : n0 - BLOCK_N, seqlen_kv);",
            (*OTHER_TILE, "V"),
        ),
        (
            "rows of a tile past the end",
            ("v11",),
            " - m0 - warp * WARP_ROWS;",
            " - m0;",
            (*SAME_PLACE, *BEYOND),
        ),
    ),
    *rows(
        "addressing",
        on=_ROWS,
    ),
    *rows(
        "key loop",
        (
            "a warp's first tiles lie side by side",
            ("v14",),
            "start_copies(i, first_tile + warp + i * NUM_WARPS);",
            "start_copies(i, first_tile + warp * (STAGES - 1) + i);",
            (*LEFT_OUT, *OTHER_TILE, *TWICE),
        ),
        (
            "splits end a tile late",
            ("v14",),
            "(int)((long long)tiles * (split + 1) / NUM_SPLITS);",
            "(int)((long long)tiles * (split + 1) / NUM_SPLITS + (split == 0));",
            (*TWICE, *WEIGHT, "split"),
        ),
        on=_DECODE,
    ),
    *rows(
        "fusion",
        (
            "the piece of another CTA",
            ("v13",),
            "const size_t piece = 2 * (size_t)cta + (cta == first_cta);",
            "const size_t piece = 2 * (size_t)cta + (cta != first_cta);",
            (*UNWRITTEN, *SPLITS, *PIECE),
        ),
        (
            "weights upside down",
            ("v13",),
            "fast_exp2(m_partial[row] - m_scaled[t][r]);",
            "fast_exp2(m_scaled[t][r] - m_partial[row]);",
            (*SPLITS, *RESCALE, *MAXIMUM),
        ),
        (
            "a share is a tile shorter than it was counted",
            ("v13",),
            "left -= end - position;",
            "left -= end - position + 1;",
            (*WEIGHTS, *UNWRITTEN, *LEFT_OUT),
        ),
        (
            "the next query tile begins where the last one did",
            ("v13",),
            "        position = 0;\n",
            "",
            (*UNWRITTEN, *LEFT_OUT, *WEIGHT),
        ),
        on=_SHARED_TILES,
        config={"num_ctas": 4},
    ),
    *rows(
        "fusion",
        (
            "maxima by clusters, read by CTAs",
            ("v14",),
            "const size_t partial_row = split * all_rows + out_row;",
            "const size_t partial_row = split / CLUSTER_SIZE * all_rows + out_row;",
            (*SAME_PLACE, *SPLITS, *UNINITIALISED),
        ),
        on=_DECODE,
        config={"cluster_size": 2, "num_splits": 8},
    ),
    *rows(
        "fusion",
        (
            "l of the cluster weighs by this CTA's maximum",
            ("v21",),
            "const float weight = fast_exp2((m_of[r] - m_known) * scale_log2);",
            "const float weight = fast_exp2((m_of[rank] - m_known) * scale_log2);",
            (*SPLITS, *RESCALE, *MAXIMUM),
        ),
        on=_DECODE,
        config={"cluster_size": 2, "num_splits": 4},
    ),
    *rows(
        "pages",
        (
            "a page too many for each sequence",
            ("v21",),
            "((seqlen_kv - 1) / PAGE_SIZE + 1);",
            "(seqlen_kv / PAGE_SIZE + 1);",
            (*SEQUENCE, "page", "block_table"),
        ),
        on=_WHOLE_PAGES,
    ),
    *rows(
        "pages",
        (
            "V of a page lies behind all of its heads' K",
            ("v21",),
            "load_tile(ring + (2 * stage + 1) * TILE, v + start, ",
            "load_tile(ring + (2 * stage + 1) * TILE, v + start + num_heads_kv * TILE, ",
            (*BEYOND, "page", "V", "head"),
        ),
        on=_DECODE,
        config={"page_size": 16},
    ),
    *rows(
        "barrier",
        (
            "the merge begins with a warp's barrier",
            ("v14",),
            "    __syncthreads();\n",
            "    __syncwarp();\n",
            UNORDERED,
        ),
        on=_DECODE,
        nth=0,
    ),
    *rows(
        "features",
        (
            "the window of a tile's last row",
            ("v14",),
            "FIRST_KEY(POSITION_OF(row0 / group)) / BLOCK_N;",
            "FIRST_KEY(POSITION_OF(last_query / group)) / BLOCK_N;",
            (*LEFT_OUT, "window"),
        ),
        (
            "tiles before a window are those of the first row",
            ("v21",),
            "IS_BEFORE_A_WINDOW(n0, end)",
            "IS_BEFORE_A_WINDOW(n0, POSITION_OF(row0 / group) + 1)",
            ("window",),
        ),
        on=_WINDOW,
    ),
    *rows(
        "features",
        (
            "a sequence's length is where it ends",
            ("v11",),
            "(given).cu_seqlens_k[(batch) + 1] - (given).cu_seqlens_k[batch]}",
            "(given).cu_seqlens_k[(batch) + 1]}",
            (*SEQUENCE, *LENGTH),
        ),
        header="features.cuh",
        on=_LENGTHS,
    ),
    *rows(
        "features",
        (
            "packed rows of K as long as Q's",
            ("v10",),
            "#define KV_ROW (num_heads_kv * HEAD_DIM)",
            "#define KV_ROW (num_heads * HEAD_DIM)",
            (*BEYOND, "stride", "head"),
        ),
        header="features.cuh",
        on=_LENGTHS_GQA,
    ),
    *rows(
        "features",
        (
            "queries stand in the middle of the keys",
            ("v11",),
            "((query) + NUM_KEYS - NUM_QUERIES)",
            "((query) + (NUM_KEYS - NUM_QUERIES) / 2)",
            (*DIAGONAL, *POSITION, "offset"),
        ),
        header="features.cuh",
        on=_OFFSET,
    ),
)
