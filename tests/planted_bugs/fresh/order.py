"""Wrong order: barriers, copies, mbarriers and products in flight."""

from __future__ import annotations

from engine.attention.problem import Problem
from engine.cuda_on_host.error_kinds import ErrorKind
from planted_bugs.causes import (
    ACCUMULATOR,
    COPY,
    DIVERGENCE,
    GIVEN_BACK,
    INITIALISED,
    NAMED_BARRIER,
    OUT_OF_BOUNDS,
    OVERWRITTEN,
    PAST_THE_END,
    PHASE,
    RACE,
    UNINITIALISED,
)
from planted_bugs.unseen import Unseen, rows

_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_ROUNDS = (Problem(1, 3, 700, 64),)
_PIECES = (Problem(1, 3, 200, 64),)
_SEVERAL = {"num_ctas": 4, "block_n": 64}
_REUSED = {"block_n": 64}


ORDER: tuple[Unseen, ...] = (
    # ---- barriers ----
    *rows(
        "barrier",
        (
            "a warp barrier where all warps load",
            ("v09",),
            "        // Every warp reads rows that other warps loaded.\n        __syncthreads();",
            "        __syncwarp();",
            ("__syncthreads", "barrier"),
        ),
        (
            "no barrier behind P",
            ("v05",),
            "        __syncwarp();\n",
            "",
            ("__syncwarp",),
        ),
        (
            "a warp barrier for half of the lanes",
            ("v07",),
            "        __syncwarp();\n\n        // O +=",
            "        if (part == 0) __syncwarp();\n\n        // O +=",
            ("__syncwarp", "lanes"),
        ),
        (
            "no barrier at the end of a tile",
            ("v01", "v03", "v08"),
            "        // The next tile overwrites K",
            "        if (n0 + BLOCK_N >= kv_end) // K",
            ("__syncthreads", "barrier"),
        ),
        (
            "a barrier that threads without a query skip",
            ("v02",),
            "loaded (Q too, the first time).\n        __syncthreads();",
            "loaded.\n        if (query < seqlen) __syncthreads();",
            (*DIVERGENCE, "__syncthreads", "barrier"),
        ),
        (
            "no barrier before V of the other warps",
            ("v12",),
            "    // And now those of the other threads, and the maxima of the other warps.\n"
            "    __syncthreads();\n",
            "",
            ("__syncthreads", "barrier"),
        ),
        (
            "no barrier before the slabs are summed",
            ("v12",),
            "        // The sums need the slabs of all warps.\n        __syncthreads();",
            "",
            ("__syncthreads", "barrier"),
        ),
        (
            "the rows of a group stored before they are there",
            ("v16",),
            "    named_barrier(1 + group, WARPGROUP);\n    if (warp == 0",
            "    if (warp == 0",
            (*NAMED_BARRIER, "named", "TMA store", "store"),
        ),
        (
            "the next piece begins before the last is stored",
            ("v13",),
            "        // The next piece's copies overwrite Q and O, which slower warps are still "
            "reading.\n        __syncthreads();\n",
            "",
            ("__syncthreads", "barrier"),
        ),
    ),
    *rows(
        "barrier",
        (
            "the turn is handed to nobody",
            ("v19",),
            "if (!is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);",
            "",
            NAMED_BARRIER,
        ),
        (
            "the first group opens the turns",
            ("v17",),
            "if (is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);",
            "if (group == 0) named_barrier_arrive(next_turn, 2 * WARPGROUP);",
            NAMED_BARRIER,
        ),
        config=_REUSED,
    ),
    # ---- cp.async ----
    *rows(
        "copy",
        (
            "rows behind the last are copied",
            ("v10",),
            "                    first_row + row < length);",
            "                    true);",
            (*OUT_OF_BOUNDS, *PAST_THE_END),
        ),
        (
            "the last V is not waited for",
            ("v13",),
            "cp_async_wait<0>();",
            "cp_async_wait<1>();",
            (ErrorKind.COPY_NOT_COMPLETE,),
        ),
        (
            "no commit behind a tile",
            ("v11",),
            "            cp_async_commit();\n",
            "",
            (ErrorKind.COPY_NOT_COMPLETE, "cp.async"),
        ),
        config={"block_n": 32},
        on=_PIECES,
    ),
    *rows(
        "copy",
        (
            "the tile is not waited for",
            ("v14",),
            "        cp_async_wait<STAGES - 2>();\n",
            "",
            (ErrorKind.COPY_NOT_COMPLETE,),
        ),
        (
            "the tile in use is overwritten",
            ("v14",),
            "stage == 0 ? STAGES - 1 : stage - 1,",
            "stage,",
            (*RACE, *COPY),
        ),
        (
            "rows behind the last are copied",
            ("v21",),
            "                    row < length);",
            "                    true);",
            (*OUT_OF_BOUNDS, *PAST_THE_END),
        ),
        on=_MANY_KEYS,
    ),
    # ---- mbarriers and TMA ----
    *rows(
        "mbarrier",
        (
            "the producer waits for the same phase",
            ("v17",),
            "/ STAGES % 2 ^ 1);",
            "/ STAGES % 2);",
            PHASE,
        ),
        (
            "V in the phase of the next tile",
            ("v17",),
            "parity_of(tile - 1));",
            "parity_of(tile));",
            PHASE,
        ),
        (
            "V is never given back",
            ("v17",),
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);\n",
            "",
            (*PHASE, "v_empty"),
        ),
        (
            "Q is not waited for",
            ("v18",),
            "    mbarrier_wait(q_full, 0);\n",
            "",
            ("mbarrier", ErrorKind.COPY_NOT_COMPLETE),
        ),
        (
            "K given back before its products are done",
            ("v17",),
            "        wgmma_wait<0>(acc_rmem, s_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);\n"
            "        if (lane == 0) mbarrier_arrive(k_empty + stage);\n",
            "        if (lane == 0) mbarrier_arrive(k_empty + stage);\n"
            "        wgmma_wait<0>(acc_rmem, s_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);\n",
            (*GIVEN_BACK, ErrorKind.RUNNING_WGMMA_REGISTERS),
        ),
        (
            "barriers used before they are initialised",
            ("v17", "v20"),
            "    // No thread uses a barrier before it is initialised.\n    __syncthreads();",
            "",
            (*INITIALISED, "__syncthreads"),
        ),
        (
            "stages are one mbarrier short",
            ("v18",),
            "    Mbarrier* v_full = k_full + STAGES;",
            "    Mbarrier* v_full = k_full + STAGES - 1;",
            (*PHASE, "mbarrier"),
        ),
        (
            "K's bytes without a box",
            ("v17",),
            "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
            "mbarrier_arrive_expect(full + stage, TILE_BYTES - 128);",
            ("bytes",),
        ),
        (
            "O is stored without a fence",
            ("v15",),
            "    async_proxy_fence();\n",
            "",
            ("fence.proxy.async",),
        ),
        config=_REUSED,
    ),
    *rows(
        "mbarrier",
        (
            "Q of a round is not waited for",
            ("v19",),
            "        mbarrier_wait(q_full + round % 2, round / 2 % 2);\n",
            "",
            ("mbarrier", ErrorKind.COPY_NOT_COMPLETE),
        ),
        (
            "twice Q's bytes",
            ("v20",),
            "mbarrier_arrive_expect(q_full + round % 2, Q_BYTES);",
            "mbarrier_arrive_expect(q_full + round % 2, 2 * Q_BYTES);",
            ("bytes",),
        ),
        (
            "Q is loaded while O is still being stored",
            ("v19",),
            "                tma_store_wait();\n",
            "",
            ("TMA store", "tma_store", "bulk", "wait_group"),
        ),
        (
            "the second place of Q counts on the first one's mbarrier",
            ("v19",),
            "&q_map, q_full + round % 2,",
            "&q_map, q_full,",
            (*PHASE, "bytes"),
        ),
        config=_SEVERAL,
        on=_ROUNDS,
    ),
    *rows(
        "mbarrier",
        (
            "V is not waited for",
            ("v22",),
            "        if (step == 0) mbarrier_wait(v_full, 0);\n",
            "",
            ("mbarrier", ErrorKind.COPY_NOT_COMPLETE),
        ),
    ),
    # ---- wgmma ----
    *rows(
        "wgmma",
        (
            "O is not waited for",
            ("v22",),
            "    wgmma_wait<0>(acc_rmem);\n",
            "",
            (ErrorKind.RUNNING_WGMMA_REGISTERS,),
        ),
    ),
    *rows(
        "wgmma",
        (
            "S is added to the last tile's",
            ("v16",),
            "if (step == 0) wgmma<false>",
            "if (step < 0) wgmma<false>",
            (*UNINITIALISED, *INITIALISED, *ACCUMULATOR, *OVERWRITTEN),
        ),
        (
            "S is not waited for",
            ("v19",),
            "wgmma_wait<1>(s_rmem);",
            "wgmma_wait<2>(s_rmem);",
            (ErrorKind.RUNNING_WGMMA_REGISTERS,),
        ),
        (
            "products of S in no group",
            ("v17",),
            "            else wgmma<true>(s_rmem, q_columns, k_columns);\n        }\n"
            "        wgmma_commit();\n",
            "            else wgmma<true>(s_rmem, q_columns, k_columns);\n        }\n",
            (ErrorKind.RUNNING_WGMMA_REGISTERS, "commit"),
        ),
        (
            "no fence before the products",
            ("v17", "v19"),
            "        wgmma_fence();\n",
            "",
            ("wgmma_fence", "wgmma.fence"),
        ),
        config=_REUSED,
    ),
)
