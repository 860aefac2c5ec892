"""Synchronisation too early, too late or missing: barriers, copies, mbarriers, wgmma, registers."""

from __future__ import annotations

from engine.attention.problem import Problem
from engine.cuda_on_host.error_kinds import ErrorKind
from planted_bugs.causes import COPY, DIVERGENCE, GIVEN_BACK, NAMED_BARRIER, OTHER_PHASE, RACE
from planted_bugs.unseen.bug import Unseen, rows

_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_REUSED = {"block_n": 64}
_SEVERAL = {"num_ctas": 4, "block_n": 64}

ORDER: tuple[Unseen, ...] = (
    # ---- barriers ----
    *rows(
        "barrier",
        (
            "no warp barrier behind S",
            ("v07",),
            "        __syncwarp();\n\n        // Online",
            "\n        // Online",
            ("__syncwarp",),
        ),
        (
            "no warp barrier behind P",
            ("v07",),
            "        __syncwarp();\n\n        // O +=",
            "\n        // O +=",
            ("__syncwarp",),
        ),
        (
            "no barrier before the next tile",
            ("v07",),
            "        __syncthreads();\n    }",
            "    }",
            ("__syncthreads",),
        ),
        (
            "barrier between the loads of K and of V",
            ("v03", "v07"),
            "        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);",
            "        __syncthreads();\n"
            "        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);\n        if (false)",
            ("__syncthreads", "barrier"),
        ),
        (
            "barrier for rows that are there",
            ("v08",),
            "        __syncthreads();\n    }\n\n    // O = O / l",
            "        if (query0 < seqlen) __syncthreads();\n    }\n\n    // O = O / l",
            DIVERGENCE,
        ),
        (
            "barrier for computing threads",
            ("v01",),
            "            m = m_new;\n        }",
            "            m = m_new;\n            __syncthreads();\n        }",
            DIVERGENCE,
        ),
        (
            "rows drop out before the shuffles",
            ("v02",),
            "    const float inv_l = 1.0f / row_sum(l);",
            "    if (query >= seqlen) return;\n    const float inv_l = 1.0f / row_sum(l);",
            ("warp", "lane"),
        ),
        (
            "the answer of thread 0 for itself alone",
            ("v06",),
            "__syncthreads_or(came_last)",
            "came_last",
            ("barrier", "thread"),
        ),
        ("no barrier in the loop", ("v10",), "        __syncthreads();\n", "", ("__syncthreads",)),
    ),
    *rows(
        "barrier",
        (
            "no barrier before the merge",
            ("v14", "v21"),
            "    // All warps have stored their partial results, which are now merged.\n"
            "    __syncthreads();",
            "",
            ("__syncthreads",),
        ),
        (
            "no warp barrier before O takes the ring",
            ("v14",),
            "    // Every lane has read its last tile: O takes the ring's place.\n"
            "    __syncwarp();",
            "",
            ("__syncwarp",),
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "barrier",
        (
            "barrier of half of the group",
            ("v15", "v17"),
            "named_barrier(1 + group, WARPGROUP);",
            "named_barrier(1 + group, 64);",
            NAMED_BARRIER,
        ),
        (
            "one barrier for all groups",
            ("v17", "v18"),
            "named_barrier(1 + group, WARPGROUP);",
            "named_barrier(1, WARPGROUP);",
            NAMED_BARRIER,
        ),
        (
            "turn of a group that is not there",
            ("v17", "v19"),
            "TURNS + (group + 1) % CONSUMERS",
            "TURNS + group + 1",
            NAMED_BARRIER,
        ),
        (
            "turn of one group's threads",
            ("v18", "v20"),
            "named_barrier(turn, 2 * WARPGROUP);",
            "named_barrier(turn, WARPGROUP);",
            NAMED_BARRIER,
        ),
        config=_REUSED,
    ),
    # ---- cp.async ----
    *rows(
        "copy",
        (
            "a tile too many under way",
            ("v10",),
            "cp_async_wait<STAGES - 2>();",
            "cp_async_wait<STAGES - 1>();",
            (ErrorKind.COPY_NOT_COMPLETE,),
        ),
        (
            "copies over the tile that is read",
            ("v10",),
            "start_copies(stage == 0 ? STAGES - 1 : stage - 1,",
            "start_copies(stage,",
            (*RACE, *COPY),
        ),
        (
            "copies before the barrier",
            ("v10",),
            "        cp_async_wait<STAGES - 2>();\n",
            "        cp_async_wait<STAGES - 2>();\n"
            "        start_copies(stage == 0 ? STAGES - 1 : stage - 1,"
            " n0 + (STAGES - 1) * BLOCK_N);\n        if (false)\n",
            (*RACE, *COPY),
        ),
        ("no waiting for V", ("v12",), "cp_async_wait_all();", "", (ErrorKind.COPY_NOT_COMPLETE,)),
    ),
    *rows(
        "copy",
        (
            "a tile too many under way",
            ("v14", "v21"),
            "cp_async_wait<STAGES - 2>();",
            "cp_async_wait<STAGES - 1>();",
            (ErrorKind.COPY_NOT_COMPLETE,),
        ),
        (
            "no warp barrier behind the copies",
            ("v14", "v21"),
            "        __syncwarp();\n        ",
            "        ",
            ("__syncwarp",),
        ),
        on=_MANY_KEYS,
        nth=0,
    ),
    # ---- mbarriers and TMA ----
    *rows(
        "mbarrier",
        (
            "waits for the next stage",
            ("v15",),
            "mbarrier_wait(full + stage, ",
            "mbarrier_wait(full + (stage + 1) % STAGES, ",
            (*OTHER_PHASE, "phase"),
        ),
        (
            "waits for the next stage of K",
            ("v16",),
            "mbarrier_wait(k_full + stage, ",
            "mbarrier_wait(k_full + (stage + 1) % STAGES, ",
            (*OTHER_PHASE, "phase"),
        ),
        (
            "waits for K in V's place",
            ("v16",),
            "mbarrier_wait(v_full + stage, ",
            "mbarrier_wait(k_full + stage, ",
            (*OTHER_PHASE, "v_full"),
        ),
        (
            "the other phase of K",
            ("v16",),
            "mbarrier_wait(k_full + stage, ",
            "mbarrier_wait(k_full + stage, 1 ^ ",
            ("phase",),
        ),
        (
            "the other phase of K",
            ("v18",),
            "mbarrier_wait(k_full + tile % STAGES, ",
            "mbarrier_wait(k_full + tile % STAGES, 1 ^ ",
            ("phase",),
        ),
        (
            "K given back before it is read",
            ("v17", "v20"),
            "    wgmma_wait<0>(s_rmem);\n    if (lane == 0) mbarrier_arrive(k_empty);",
            "    if (lane == 0) mbarrier_arrive(k_empty);\n    wgmma_wait<0>(s_rmem);",
            GIVEN_BACK,
        ),
        (
            "two arrivals for the one that comes",
            ("v16", "v18"),
            "mbarrier_init(k_full + stage, 1);",
            "mbarrier_init(k_full + stage, 2);",
            (("mbarrier_arrivals_missing", "2"), ("phase_left_open", "2")),
        ),
        (
            "an arrival more than warps",
            ("v17",),
            "mbarrier_init(k_empty + stage, 4 * CONSUMERS);",
            "mbarrier_init(k_empty + stage, 4 * CONSUMERS + 1);",
            (("mbarrier_arrivals_missing", "9"), ("phase_left_open", "9")),
        ),
        (
            "an arrival more than warps",
            ("v19",),
            "mbarrier_init(k_empty + stage, 4 * CONSUMERS * CLUSTER_SIZE);",
            "mbarrier_init(k_empty + stage, 4 * CONSUMERS * CLUSTER_SIZE + 1);",
            (("mbarrier_arrivals_missing", "9"), ("phase_left_open", "9")),
        ),
        (
            "every lane asks for tiles",
            ("v15",),
            "&& elect_one()) load_tile",
            ") load_tile",
            (ErrorKind.TOO_MANY_ARRIVALS, "arrive", "arrival"),
        ),
        (
            "two warps produce",
            ("v16", "v18"),
            "threadIdx.x >= 32 || !elect_one()",
            "threadIdx.x >= 64 || !elect_one()",
            ("arrive", "arrival"),
        ),
        (
            "arrival without its bytes",
            ("v18",),
            "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
            "mbarrier_arrive(full + stage);",
            ("bytes",),
        ),
        (
            "a fence of threads in place of the proxies'",
            ("v16", "v20"),
            "async_proxy_fence();",
            "__threadfence_block();",
            ("fence.proxy.async",),
        ),
        (
            "one lane fences for its warp",
            ("v22",),
            "async_proxy_fence();",
            "if (lane == 0) async_proxy_fence();",
            ("fence.proxy.async",),
        ),
        (
            "K's second half is waited for behind its use",
            ("v22",),
            "if (half == 1) mbarrier_wait(k_full, 0);",
            "if (half == 2) mbarrier_wait(k_full, 0);",
            ("k_full", "mbarrier"),
        ),
        config={},
    ),
    *rows(
        "mbarrier",
        (
            "parity of the ring never changes",
            ("v19", "v20"),
            "parity ^= stage == 0;",
            "",
            ("phase",),
        ),
        (
            "parity of the tile before is 0",
            ("v19",),
            "mbarrier_wait(v_full + last_stage, parity ^ stage == 0);",
            "mbarrier_wait(v_full + last_stage, 0);",
            ("phase",),
        ),
        (
            "K of the first stage for every tile",
            ("v19", "v20"),
            "k_rows + warp_uniform(stage) * (TILE_BYTES >> 4)",
            "k_rows",
            (*COPY, "stage", "mbarrier", "key tile"),
        ),
        (
            "one group says that O is there",
            ("v19",),
            "mbarrier_init(o_full + place, 4 * CONSUMERS);",
            "mbarrier_init(o_full + place, 4);",
            ("arrive", "arrival"),
        ),
        config=_SEVERAL,
    ),
    # ---- wgmma ----
    *rows(
        "wgmma",
        (
            "O and P touched while they are multiplied",
            ("v18",),
            "        wgmma_wait<0>(acc_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);\n"
            "        rescale_and_pack(correction);",
            "        rescale_and_pack(correction);\n        wgmma_wait<0>(acc_rmem);\n"
            "        if (lane == 0) mbarrier_arrive(v_empty + last_stage);",
            (ErrorKind.RUNNING_WGMMA_REGISTERS, "wgmma_a_overwritten", "acc_rmem"),
        ),
        (
            "S read while it is multiplied",
            ("v18",),
            "wgmma_wait<1>(s_rmem);",
            "wgmma_wait<2>(s_rmem);",
            (ErrorKind.RUNNING_WGMMA_REGISTERS, "wgmma_a_overwritten", "s_rmem"),
        ),
        (
            "the group of S is not closed",
            ("v17", "v20"),
            "else wgmma<true>(s_rmem, q_columns, k_columns);\n        }\n        wgmma_commit();",
            "else wgmma<true>(s_rmem, q_columns, k_columns);\n        }",
            ("wgmma",),
        ),
        (
            "O is waited for with one group left",
            ("v15",),
            "        wgmma_commit();\n        wgmma_wait<0>(acc_rmem);\n    }",
            "        wgmma_commit();\n        wgmma_wait<1>(acc_rmem);\n    }",
            ("wgmma",),
        ),
        (
            "one warp issues for its group",
            ("v15",),
            "        wgmma_fence();\n#pragma unroll\n        for (int step = 0; step < KEY_STEPS",
            "        if (warp == 0) wgmma_fence();\n#pragma unroll\n"
            "        for (int step = 0; step < KEY_STEPS",
            ("wgmma_fence", "wgmma.fence"),
        ),
        config=_REUSED,
    ),
    # ---- registers of a warp ----
    *rows(
        "registers",
        (
            "one warp of the producer gives registers back",
            ("v17", "v19"),
            "fewer_registers<PRODUCER_REGISTERS>();",
            "if (threadIdx.x < 32) fewer_registers<PRODUCER_REGISTERS>();",
            ("setmaxnreg",),
        ),
        (
            "the producer takes in place of giving",
            ("v18", "v20"),
            "fewer_registers<PRODUCER_REGISTERS>();",
            "more_registers<PRODUCER_REGISTERS>();",
            ("setmaxnreg",),
        ),
        (
            "the producer keeps what it has",
            ("v17", "v20"),
            "fewer_registers<PRODUCER_REGISTERS>();",
            "",
            ("setmaxnreg",),
        ),
        (
            "consumers take too many",
            ("v18",),
            "CONSUMERS == 2 ? 240 : 160;",
            "CONSUMERS == 2 ? 248 : 160;",
            ("setmaxnreg", "registers"),
        ),
    ),
)
