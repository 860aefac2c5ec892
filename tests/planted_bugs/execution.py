"""Bugs of the execution: barriers, counters, clusters, rings of tiles, shares of tiles."""

from __future__ import annotations

from engine.cuda_on_host.error_kinds import ErrorKind
from planted_bugs.causes import FUSION, NEVER_WRITTEN, OUT_OF_BOUNDS, RACE, RESCALE, WAITED
from planted_bugs.mutation import HOPPER, LOOPED, SHARED_KEYS, SPLIT, Mutation

_RACE = (
    "sync_missing",
    "no_barrier_between",
    "no_barrier_since",
    "no_barrier_orders",
    "read_before_written",
    "read_before_wait",
)
# v14: two clusters of two CTAs, at least two tiles per warp for 200 keys; and one cluster.
_CLUSTERS = {"num_splits": 4, "cluster_size": 2, "num_warps": 2}
_ONE_CLUSTER = {"num_splits": 2, "cluster_size": 2, "num_warps": 2}
_COPIED = (*WAITED, ErrorKind.COPY_NOT_COMPLETE, "cp.async", *_RACE)
# The ring with K two tiles ahead of V, and the config in which its bugs are looked for.
_TWO_AHEAD: tuple[tuple[str, dict[str, int]], ...] = (("v11", {}), ("v13", {"num_ctas": 4}))

MUTATIONS: tuple[Mutation, ...] = (
    # ---- barriers and lanes ----
    Mutation("no barrier after the loads", LOOPED, "__syncthreads();", ";", _RACE, nth=0),
    Mutation(
        "no barrier before the next tile",
        tuple(variant for variant in LOOPED if variant not in SPLIT),
        "__syncthreads();",
        ";",
        _RACE,
        nth=1,
    ),
    Mutation(
        "no barrier before the next tile",
        SPLIT,
        "__syncthreads();",
        ";",
        _RACE,
        nth=1,
        config={"num_splits": 2},  # with four splits a chunk is one tile
    ),
    Mutation(
        "no barrier behind the copy of K",
        ("v12",),
        "__syncthreads();",
        ";",
        _RACE,
        nth=0,
        config=SHARED_KEYS,
    ),
    Mutation("no barrier behind the copy of V", ("v12",), "__syncthreads();", ";", _RACE, nth=1),
    Mutation(
        "no barrier before O takes the place of V",
        ("v12",),
        "__syncthreads();",
        ";",
        _RACE,
        nth=2,
        config={"num_warps": 8, "row_warps": 4, "keys_per_warp": 64},
    ),
    Mutation("no barrier before the merge", ("v12",), "__syncthreads();", ";", _RACE, nth=3),
    Mutation(
        "no warp barrier before O takes the place of V",
        ("v12",),
        "__syncwarp();",
        ";",
        _RACE,
        nth=0,
    ),
    Mutation("no warp barrier behind the sums", ("v12",), "__syncwarp();", ";", _RACE, nth=1),
    Mutation("no warp barrier before the stores", ("v12",), "__syncwarp();", ";", _RACE, nth=2),
    Mutation(
        "no warp barrier",
        ("v02", "v03", "v04", "v05", "v06", "v13"),
        "__syncwarp();",
        ";",
        _RACE,
    ),
    *(
        Mutation(
            "half of the warp in the mask",
            variants,
            "FULL_WARP = 0xffffffffu",
            "FULL_WARP = 0x0000ffffu",
            (ErrorKind.BAD_WARP_MASK, "lane_not_in_mask", "lane_waits_in_mask"),
            header=header,
        )
        for header, variants in (
            ("", ("v02", "v03", "v04", "v05", "v06")),
            ("rows.cuh", ("v08", "v09", "v10", "v11", "v12", "v13", *HOPPER)),
        )
    ),
    Mutation(
        "a barrier that half of the CTA reaches",
        ("v01",),
        "which slower threads are still reading.\n        __syncthreads();",
        "which slower threads read.\n        if (tid < BLOCK_M) __syncthreads();",
        ("__syncthreads", "barrier"),
    ),
    Mutation(
        "rows that drop out before a barrier",
        ("v02",),
        "    load_tile<BLOCK_M>(q_smem",
        "    if (query >= seqlen) return;\n    load_tile<BLOCK_M>(q_smem",
        (
            "barrier",
            ErrorKind.SHARED_UNINITIALISED,
            ErrorKind.GLOBAL_UNINITIALISED,
            ErrorKind.LOCAL_UNINITIALISED,
            "peer_has_exited",
            "lane",
        ),
    ),
    # ---- the counter of v06 ----
    *(
        Mutation(
            name,
            ("v06", "v14", "v21"),
            "atom.acq_rel.gpu",
            f"atom.{order}.{scope}",
            ("fence", "other_cta_in_this_launch"),
            header="arrival.cuh",
        )
        for name, order, scope in (
            ("the arrival does not release", "acquire", "gpu"),
            ("the arrival does not acquire", "release", "gpu"),
            ("the arrival orders nothing", "relaxed", "gpu"),
            ("the arrival is ordered within its CTA", "acq_rel", "cta"),
        )
    ),
    Mutation(
        "the arrival is a relaxed atomic",
        ("v06",),
        "arrive_at_counter(tile_arrivals)",
        "atomicAdd(tile_arrivals, 1)",
        ("fence", "other_cta_in_this_launch"),
    ),
    Mutation(
        "counter not atomic",
        ("v06",),
        "arrive_at_counter(tile_arrivals)",
        "(*tile_arrivals)++",
        ("arrivals",),
    ),
    Mutation(
        "fused one split early",
        ("v06",),
        "== NUM_SPLITS - 1;",
        "== NUM_SPLITS - 2;",
        ("other_cta_in_this_launch", ErrorKind.GLOBAL_UNINITIALISED),
    ),
    Mutation(
        "fused one split early",
        ("v14",),
        "== PARTS - 1;",
        "== PARTS - 2;",
        ("other_cta_in_this_launch", ErrorKind.GLOBAL_UNINITIALISED),
    ),
    # ---- the clusters of v14 ----
    Mutation(
        "no cluster barrier before the fusion",
        ("v14",),
        "        cluster_arrive();\n        cluster_wait();\n",
        "",
        ("cta_returned_before", "access_before_start", "barrier"),
        config=_CLUSTERS,
    ),
    Mutation(
        "CTA returns while it is read",
        ("v14",),
        "if constexpr (CLUSTER_SIZE > 1) cluster_wait();",
        "",
        (ErrorKind.CTA_HAS_LEFT, "access_before_start"),
        config=_ONE_CLUSTER,
    ),
    Mutation(
        "m and l written over while they are read",
        ("v14",),
        "        __syncwarp();\n        float* o_row",
        "        float* o_row",
        (*RACE, "barrier", "__syncwarp"),
        config=_CLUSTERS,
    ),
    Mutation(
        "own l for that of the other CTA",
        ("v14",),
        "load_of_cta(l_smem + tile_row, r)",
        "l_smem[tile_row]",
        (*RESCALE, *FUSION, "splits", "keys"),
        config=_CLUSTERS,
    ),
    Mutation(
        "maximum of the first CTA alone",
        ("v14",),
        "m = fmaxf(m, m_of[r]);",
        "m = m_of[0];",
        ("NaN", "other_cta_in_this_launch", "keys", *NEVER_WRITTEN),
        "causal",
        config=_CLUSTERS,
    ),
    Mutation(
        "all CTAs of a cluster write the first share",
        ("v14",),
        "const int d0 = rank * (HEAD_DIM / CLUSTER_SIZE) + 2 * part;",
        "const int d0 = 2 * part;",
        (ErrorKind.GLOBAL_RACE, "columns"),
        config=_CLUSTERS,
    ),
    Mutation(
        "all CTAs of a cluster take the first share",
        ("v14",),
        "o_row + rank * (HEAD_DIM / CLUSTER_SIZE);",
        "o_row;",
        ("columns",),
        config=_CLUSTERS,
    ),
    Mutation(
        "one counter for the shares of all ranks",
        ("v14",),
        "tile_index * CLUSTER_SIZE + rank;",
        "tile_index * CLUSTER_SIZE;",
        (
            "other_cta_in_this_launch",
            ErrorKind.SHARED_UNINITIALISED,
            ErrorKind.GLOBAL_UNINITIALISED,
            ErrorKind.LOCAL_UNINITIALISED,
            "arrivals",
        ),
        config=_CLUSTERS,
    ),
    Mutation(
        "address of another CTA",
        ("v14",),
        "mapa.shared::cluster.u32 %0, %1, %2;",
        "mapa.shared::cluster.u32 %0, %1, 0;",
        ("splits", "keys", *FUSION),
        header="cluster.cuh",
        config=_CLUSTERS,
    ),
    Mutation(
        "counter not reset",
        ("v06",),
        "if (threadIdx.x == 0) *tile_arrivals = 0;",
        "",
        ("arrivals", "second_run_differs"),
    ),
    Mutation(
        "counter of another tile",
        ("v06",),
        "arrivals + head_index * gridDim.x + tile_index",
        "arrivals + head_index + tile_index",
        ("arrivals", *NEVER_WRITTEN, "other_cta_in_this_launch"),
    ),
    Mutation(
        "no barrier before the arrival",
        ("v06",),
        "__syncthreads();",
        ";",
        (*_RACE, "other_cta_in_this_launch"),
        nth=2,
    ),
    # ---- the ring of v11 and v13, two tiles of K ahead of V ----
    *(
        Mutation(name, (variant,), old, ";", words, nth=nth, config=config | own)
        for variant, own in _TWO_AHEAD
        for name, old, nth, words, config in (
            ("no wait for the first K", "cp_async_wait<STAGES - 1>();", None, _COPIED, {}),
            ("no wait for the second K", "cp_async_wait<STAGES - 2>();", 0, _COPIED, {}),
            ("no wait for V and the K ahead", "cp_async_wait<STAGES - 2>();", 1, _COPIED, {}),
            ("no wait for the last V", "cp_async_wait<0>();", None, _COPIED, {}),
            ("no barrier after the first wait", "__syncthreads();", 0, _RACE, {}),
            ("no barrier after the second wait", "__syncthreads();", 1, _RACE, {}),
            ("no barrier in the loop", "__syncthreads();", 2, _RACE, {}),
            ("no barrier before the last V", "__syncthreads();", 3, _RACE, {}),
            ("first groups not closed", "cp_async_commit();", 0, _COPIED, {}),
            ("group of the third K not closed", "cp_async_commit();", 1, _COPIED, {"stages": 3}),
            ("groups in the loop not closed", "cp_async_commit();", 2, _COPIED, {"stages": 3}),
        )
    ),
    Mutation("no barrier before O takes the ring", ("v11",), "__syncthreads();", ";", _RACE, nth=4),
    *(
        Mutation(name, (variant,), old, new, words, config=own)
        for (variant, own), (copy_k, copy_v, place, source, tile) in zip(
            _TWO_AHEAD,
            (
                ("start_k", "start_v", "K_TILE", "lane_source", "SOURCE_TILE"),
                ("start_copy", "start_copy", "TILE", "lane_source + (v - k)", "TILE"),
            ),
            strict=True,
        )
        for name, old, new, words in (
            (
                "K over the tile still to be read",
                f"{copy_k}(k_stage, lane",
                f"{copy_k}(v_stage == k_stage ? 0 : LAST_STAGE - k_stage, lane",
                (*_RACE,),
            ),
            (
                "V over V still to be read",
                f"{copy_v}(v_place, lane",
                f"{copy_v}(v_stage + {place}, lane",
                _RACE,
            ),
            (
                "V a tile too far on",
                f"(v_place, {source}, next",
                f"(v_place, {source} + {tile}, next",
                ("V", *OUT_OF_BOUNDS),
            ),
        )
    ),
    *(
        Mutation(name, (variant,), old, new, words, nth=nth, config=own)
        for variant, own in _TWO_AHEAD
        for name, old, new, nth, words in (
            (
                "a tile too many may be under way",
                "cp_async_wait<STAGES - 2>();",
                "cp_async_wait<STAGES - 1>();",
                1,
                _COPIED,
            ),
            (
                "K a tile too far on",
                "lane_source + 2 * TILE, next",
                "lane_source + 3 * TILE, next",
                None,
                ("K", *OUT_OF_BOUNDS),
            ),
            (
                "the rest of P left out",
                "exponentiate<EARLY, KEY_STEPS>(",
                "exponentiate<KEY_STEPS, KEY_STEPS>(",
                0,
                ("l", "P"),
            ),
            (
                "loop's O not rescaled",
                "rescale(acc_rmem[t], correction[t]);",
                ";",
                0,
                ("with_wrong_weights", "against_the_rest"),
            ),
            (
                "the last O not rescaled",
                "rescale(acc_rmem[t], correction[t]);",
                ";",
                1,
                (*RESCALE, "O"),
            ),
        )
    ),
    *(
        Mutation(
            "the last rest of P left out",
            (variant,),
            "exponentiate<EARLY, KEY_STEPS>(",
            "exponentiate<KEY_STEPS, KEY_STEPS>(",
            ("l", "P"),
            shapes="gqa",  # the last tile has more than half of its keys
            nth=1,
            config=own,
        )
        for variant, own in _TWO_AHEAD
    ),
    *(
        Mutation(
            "K ahead from the tile before",
            (variant,),
            f"load_ahead(k_ahead, k_lane + 2 * {after});",
            f"load_ahead(k_ahead, k_lane + 2 * {before});",
            ("K", "key", ErrorKind.COPY_NOT_COMPLETE),
            config=own,
        )
        for (variant, own), after, before in zip(
            _TWO_AHEAD,
            ("k_stage", "(k_stage == LAST_STAGE ? 0 : k_stage + 2 * TILE)"),
            ("v_stage", "k_stage"),
            strict=True,
        )
    ),
    # ---- the shares of v13, with four CTAs ----
    *(
        Mutation(name, ("v13",), old, new, words, nth=nth, config={"num_ctas": 4})
        for name, old, new, nth, words in (
            (
                "no barrier before the arrival",
                "__syncthreads();",
                ";",
                4,
                (*_RACE, "other_cta_in_this_launch"),
            ),
            ("no barrier before the next piece", "__syncthreads();", ";", 5, _RACE),
            (
                "the arrival is a relaxed atomic",
                "arrive_at_counter(tile_arrivals)",
                "atomicAdd(tile_arrivals, 1)",
                None,
                ("fence", "other_cta_in_this_launch"),
            ),
            (
                "fused one piece early",
                "== last_cta - first_cta;",
                "== last_cta - first_cta - 1;",
                None,
                ("other_cta_in_this_launch", ErrorKind.GLOBAL_UNINITIALISED),
            ),
            (
                "counter not reset",
                "if (threadIdx.x == 0) *tile_arrivals = 0;",
                "",
                None,
                ("arrivals", "second_run_differs"),
            ),
            (
                "slot of the other piece",
                "+ (begin_tile == 0);",
                "+ (begin_tile != 0);",
                None,
                ("other_cta_in_this_launch", ErrorKind.GLOBAL_UNINITIALISED, "no_cta_wrote"),
            ),
        )
    ),
)
