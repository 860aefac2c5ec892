"""Bugs in the rungs of Hopper, v15 to v20 and v22."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.sixth.words import (
    AGAIN,
    ARRIVAL,
    BATCH,
    CAUSAL,
    COLUMN,
    END,
    LEFT,
    MAXIMUM,
    OF_K,
    OF_Q,
    OF_V,
    RACE,
    RESCALE,
    SHARED,
    SUM,
    TILE,
)
from planted_bugs.unseen import Unseen, rows

_SHORT = (Problem(1, 2, 113, 64),)
_SHORT_GQA = (Problem(1, 4, 100, 64, num_heads_kv=2),)
_TWO = (Problem(2, 2, 300, 64),)
_ALIBI = (Problem(1, 4, 200, 64, alibi=True),)
_SINKS = (Problem(1, 4, 200, 64, sinks=True),)
_WINDOW = (Problem(1, 2, 400, 64, causal=True, window=40),)

HOPPER: tuple[Unseen, ...] = (
    *rows(
        "mbarrier",
        (
            "a parity of every second stage",
            ("v15",),
            "mbarrier_wait(full + stage, tile / STAGES % 2);",
            "mbarrier_wait(full + stage, (tile + 1) / STAGES % 2);",
            ARRIVAL,
        ),
        (
            "K is given back in V's place",
            ("v16",),
            "mbarrier_arrive(v_empty + stage);",
            "mbarrier_arrive(k_empty + stage);",
            ARRIVAL,
        ),
        (
            "V arrives where K does",
            ("v16",),
            "load_tile(&v_map, v_ring, v_full, v_empty, tile);",
            "load_tile(&v_map, v_ring, k_full, v_empty, tile);",
            (r"bytes", *ARRIVAL),
        ),
        (
            "V's stage is free after one warp of each group",
            ("v16",),
            "mbarrier_init(v_empty + stage, 4 * CONSUMERS);",
            "mbarrier_init(v_empty + stage, CONSUMERS);",
            (r"count", *ARRIVAL),
        ),
        (
            "the last V is never loaded",
            ("v18",),
            "        load_tile(&v_map, v_ring, v_full, v_empty, tiles - 1);\n",
            "",
            (r"hang", r"never", *OF_V, *ARRIVAL),
        ),
        (
            "the next K is this one",
            ("v18",),
            "wait_for_k(tile + 1);",
            "wait_for_k(tile);",
            (r"wait", r"TMA", *ARRIVAL),
        ),
        (
            "Q's second place is not initialised",
            ("v19",),
            "for (int place = 0; place < 2; place++) {",
            "for (int place = 0; place < 1; place++) {",
            (r"initiali", *ARRIVAL),
        ),
        (
            "K is waited for in V's mbarrier",
            ("v20",),
            "mbarrier_wait(k_full + next_stage, parity ^ next_stage == 0);",
            "mbarrier_wait(v_full + next_stage, parity ^ next_stage == 0);",
            (r"TMA", *ARRIVAL),
        ),
    ),
    *rows(
        "mbarrier",
        (
            "V's mbarrier is not initialised",
            ("v22",),
            "for (int i = 0; i < GROUPS + 2; i++) mbarrier_init(q_full + i, 1);",
            "for (int i = 0; i < GROUPS + 1; i++) mbarrier_init(q_full + i, 1);",
            (r"initiali", *ARRIVAL),
        ),
        (
            "the second half of K on the first one's mbarrier",
            ("v22",),
            "load_k(1, k_full);",
            "load_k(1, q_full);",
            (r"bytes", *ARRIVAL),
        ),
        on=_SHORT,
    ),
    *rows(
        "descriptors",
        (
            "V of the next stage",
            ("v17",),
            "shared_address(v_ring) + tile % STAGES * TILE_BYTES;",
            "shared_address(v_ring) + (tile + 1) % STAGES * TILE_BYTES;",
            (*OF_V, r"stage", r"wait", *ARRIVAL),
        ),
        (
            "V's rows 16 bytes on",
            ("v16",),
            "wgmma_descriptor<ROW_BYTES>(v_address + step * 16 * ROW_BYTES,",
            "wgmma_descriptor<ROW_BYTES>(v_address + step * 16 * ROW_BYTES + 16,",
            (r"descriptor", r"swizzle", *OF_V, *COLUMN),
        ),
        (
            "K for both operands",
            ("v15",),
            "wgmma<true>(s_rmem, q_columns, k_columns);",
            "wgmma<true>(s_rmem, k_columns, k_columns);",
            (*OF_Q, r"operand", r"descriptor"),
        ),
    ),
    *rows(
        "descriptors",
        (
            "groups of eight rows half as far apart",
            ("v18",),
            "constexpr unsigned long long GROUP = 8 * ROW_BYTES >> 4;",
            "constexpr unsigned long long GROUP = 4 * ROW_BYTES >> 4;",
            (r"descriptor", r"stride"),
        ),
        header="hopper.cuh",
    ),
    *rows(
        "descriptors",
        (
            "groups of eight rows twice as far apart",
            ("v22",),
            "constexpr unsigned long long GROUP = 8 * ROW_BYTES >> 4;",
            "constexpr unsigned long long GROUP = 16 * ROW_BYTES >> 4;",
            (r"descriptor", r"stride", *END),
        ),
        header="hopper.cuh",
        on=_SHORT,
    ),
    *rows(
        "descriptors",
        (
            "halves of K twice as far apart",
            ("v22",),
            "k_first + half * (HALF_BYTES >> 4)",
            "k_first + half * (TILE_BYTES >> 4)",
            (r"descriptor", *OF_K, r"wait", *ARRIVAL),
        ),
        on=_SHORT,
    ),
    *rows(
        "boxes",
        (
            "V's boxes from K's map",
            ("v15",),
            "tma_load(k_smem + TILE_BYTES + offset, &v_map, ",
            "tma_load(k_smem + TILE_BYTES + offset, &k_map, ",
            (*OF_V, *OF_K),
        ),
        (
            "head and batch exchanged in a box of Q",
            ("v16",),
            "&q_map, q_full, box * COLUMNS, m0, head,\n                     batch);",
            "&q_map, q_full, box * COLUMNS, m0, batch,\n                     head);",
            (r"\bheads?\b", *BATCH, *OF_Q),
        ),
        (
            "a stage's rows counted from the stage",
            ("v17",),
            "box * COLUMNS, tile * BLOCK_N, kv_head, batch);",
            "box * COLUMNS, stage * BLOCK_N, kv_head, batch);",
            (*TILE, *AGAIN, *LEFT),
        ),
        on=_TWO,
    ),
    *rows(
        "barrier",
        (
            "the first turn is a group's own barrier",
            ("v17",),
            "named_barrier(turn, 2 * WARPGROUP);\n    wgmma_fence();\n    multiply_q_k(0);",
            "named_barrier(turn, WARPGROUP);\n    wgmma_fence();\n    multiply_q_k(0);",
            (r"barrier",),
        ),
        (
            "turns and outputs share their numbers",
            ("v18",),
            "constexpr int TURNS = 4;",
            "constexpr int TURNS = 1;",
            (r"barrier",),
        ),
        (
            "O's rows are written before Q's readers are done",
            ("v15",),
            "    named_barrier(1 + group, WARPGROUP);\n    // O takes",
            "    // O takes",
            (*RACE, r"wgmma", *OF_Q),
        ),
        (
            "half of a group meets before its store",
            ("v16",),
            "    named_barrier(1 + group, WARPGROUP);\n    if (warp == 0",
            "    named_barrier(1 + group + warp / 2 * 4, WARPGROUP / 2);\n    if (warp == 0",
            (*RACE, r"TMA"),
        ),
    ),
    *rows(
        "wgmma",
        (
            "V's product is not waited for",
            ("v16",),
            "        wgmma_wait<0>(acc_rmem);\n",
            "        wgmma_wait<1>(acc_rmem);\n",
            (r"wgmma", r"wait"),
        ),
        (
            "one fence for both products",
            ("v15",),
            "        wgmma_fence();\n",
            "        if (tile == 0) wgmma_fence();\n",
            (r"fence",),
        ),
        (
            "P is packed while the last product reads it",
            ("v19",),
            "wait_for_o();\n            if (is_grown)",
            "pack_p();\n            wait_for_o();\n            if (is_grown)",
            (r"wgmma", r"register", r"wait"),
        ),
    ),
    *rows(
        "softmax",
        (
            "every second weight in the sum",
            ("v17",),
            "l_rmem[r] += left + right;",
            "l_rmem[r] += left;",
            SUM,
        ),
        (
            "a lower maximum replaces a higher one",
            ("v20",),
            "is_grown ? fmaxf(m_old, m_new[r]) : m_old;",
            "is_grown ? m_new[r] : m_old;",
            (*MAXIMUM, *RESCALE),
        ),
        (
            "the sum begins anew before it is divided by",
            ("v19",),
            "        divide_one_by_l(last, inv_l);\n        start_rows();",
            "        start_rows();\n        divide_one_by_l(last, inv_l);",
            (*SUM, r"divid", r"infinit"),
        ),
        (
            "the rescale of the rows that did not grow",
            ("v20",),
            "if (is_grown) rescale_o(correction);",
            "if (!is_grown) rescale_o(correction);",
            RESCALE,
        ),
        (
            "maxima of four of eight columns",
            ("v15",),
            "for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {\n"
            "                m_new = fmaxf(m_new, fmaxf(s_rmem[i], s_rmem[i + 1]));",
            "for (int i = 2 * r; i < BLOCK_N / 2; i += 8) {\n"
            "                m_new = fmaxf(m_new, fmaxf(s_rmem[i], s_rmem[i + 1]));",
            MAXIMUM,
        ),
    ),
    *rows(
        "softmax",
        (
            "one lane's sum",
            ("v22",),
            "__fdividef(1.0f, row_sum(l_rmem[r]));",
            "__fdividef(1.0f, 4.0f * l_rmem[r]);",
            (*SUM, r"lanes?"),
        ),
        on=_SHORT,
    ),
    *rows(
        "mask",
        (
            "rows of the mask by columns",
            ("v15",),
            "const int query = query0 + i / 2 % 2 * 8;",
            "const int query = query0 + i % 2 * 8;",
            (*CAUSAL, r"mask"),
        ),
        (
            "whole warpgroups see what their first row sees",
            ("v18",),
            "const int query = query0 + i / 2 % 2 * 8;",
            "const int query = m0 + group * GROUP_ROWS;",
            (*CAUSAL, r"mask"),
        ),
        (
            "a tile that the second group's rows need is whole",
            ("v16",),
            "min(seqlen_kv, m0 + 1) : seqlen_kv)",
            "min(seqlen_kv, m0 + 1 + group * GROUP_ROWS + BLOCK_N / 2) : seqlen_kv)",
            (*CAUSAL, r"mask"),
        ),
        shapes="causal",
    ),
    *rows(
        "store",
        (
            "the second group's rows over the first one's",
            ("v15",),
            "box * COLUMNS, m0 + group * GROUP_ROWS, head, batch);",
            "box * COLUMNS, m0, head, batch);",
            SHARED,
        ),
        (
            "chunks of O beyond their row",
            ("v16",),
            "column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8);",
            "column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % 16;",
            (r"swizzle", r"chunk", *RACE, *COLUMN, *END),
        ),
        (
            "O is stored from where Q of the next round lies",
            ("v19",),
            "tma_store(&out_map, place + box",
            "tma_store(&out_map, q_smem + (round + 1) % 2 * Q_BYTES + box",
            (r"TMA", *ARRIVAL, *RACE),
        ),
    ),
    *rows(
        "store",
        (
            "rows of a warp counted in its group",
            ("v22",),
            "box * COLUMNS, m0 + warp * 16, head, batch);",
            "box * COLUMNS, m0 + warp % 4 * 16, head, batch);",
            SHARED,
        ),
        on=_SHORT,
    ),
    *rows(
        "registers",
        (
            "half a warp gives registers back",
            ("v19",),
            "        fewer_registers<PRODUCER_REGISTERS>();\n",
            "        if (threadIdx.x % 32 < 16) fewer_registers<PRODUCER_REGISTERS>();\n",
            (r"setmaxnreg", r"registers"),
        ),
    ),
    *rows(
        "addressing",
        (
            "V of the first sequence in every round",
            ("v19",),
            "                    last_batch = now.batch;\n",
            "",
            (*BATCH, *OF_V),
        ),
        on=_TWO,
        config={"num_ctas": 4},
    ),
    *rows(
        "addressing",
        (
            "K/V head rounded up",
            ("v22",),
            "(int)((head + 0.5f) * kv_heads_per_head);",
            "(int)((head + 1.0f) * kv_heads_per_head);",
            (r"\bheads?\b", *END),
        ),
        on=_SHORT_GQA,
    ),
    *rows(
        "precision",
        (
            "a polynomial that is not held at its end",
            ("v20",),
            "    x = fmaxf(x, -125.0f);",
            "",
            (r"NaN", r"polynomial", r"exponen", r"mask", r"underflow"),
        ),
        config={"polynomial": 4},
    ),
    *rows(
        "features",
        (
            "the first head's slope for every round",
            ("v19",),
            "score_mod_of(given, head, softmax_scale);",
            "score_mod_of(given, 0, softmax_scale);",
            (r"ALiBi", r"slope"),
        ),
        on=_ALIBI,
    ),
    *rows(
        "features",
        (
            "the next query tile's sink",
            ("v19",),
            "        divide_one_by_l(last, inv_l);",
            "        divide_one_by_l(now, inv_l);",
            (r"\bsinks?\b",),
        ),
        on=_SINKS,
        config={"num_ctas": 4},
    ),
    *rows(
        "features",
        (
            "the mask counts tiles from the first key",
            ("v19",),
            "const int n0 = first_key_of(m0, seqlen, seqlen_kv) + tile * BLOCK_N;",
            "const int n0 = tile * BLOCK_N;",
            (r"window", r"mask"),
        ),
        on=_WINDOW,
    ),
)
