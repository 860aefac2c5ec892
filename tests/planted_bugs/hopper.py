"""Mistakes around Hopper's asynchronous instructions: every wait, fence, arrival and barrier."""

from __future__ import annotations

from planted_bugs.mutation import HOPPER, WARP_SPECIALIZED, Mutation

_RACE = (
    "shared memory race",
    "with no barrier since",
    "no barrier orders",
    "a barrier is missing",
    "not arrived",
    "has not landed",
)
_REUSED = {"block_n": 64}  # more tiles than stages
_TOO_MANY = ("too many mbarrier arrivals",)
_LANDS = (*_RACE, "mbarrier", "copy")
_WRONG = ("largest error", "copy not complete", "shared memory race")  # elements of other places

MUTATIONS: tuple[Mutation, ...] = (
    # ---- mbarriers ----
    Mutation("no wait for Q", HOPPER, "mbarrier_wait(q_full, 0);", ";", _LANDS),
    Mutation(
        "no wait for a tile",
        ("v15",),
        "mbarrier_wait(full + stage, tile / STAGES % 2);",
        ";",
        _LANDS,
    ),
    Mutation(
        "the phase of every tile is its number's",
        ("v15",),
        "mbarrier_wait(full + stage, tile / STAGES % 2);",
        "mbarrier_wait(full + stage, tile % 2);",
        _LANDS,
    ),
    Mutation("Q is not expected", HOPPER, "mbarrier_arrive_expect(q_full, Q_BYTES);", ";", _LANDS),
    Mutation(
        "Q arrives without its bytes",
        HOPPER,
        "mbarrier_arrive_expect(q_full, Q_BYTES);",
        "mbarrier_arrive(q_full);",
        _LANDS,
    ),
    Mutation(
        "half of a tile is expected",
        ("v15",),
        "mbarrier_arrive_expect(full + stage, 2 * TILE_BYTES);",
        "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
        _LANDS,
    ),
    Mutation(
        "more than a tile is expected",
        ("v15",),
        "mbarrier_arrive_expect(full + stage, 2 * TILE_BYTES);",
        "mbarrier_arrive_expect(full + stage, 2 * TILE_BYTES + 16);",
        _LANDS,
    ),
    Mutation("no barrier before the next tile", ("v15",), "__syncthreads();", ";", _LANDS, nth=0),
    *(
        Mutation(name, ("v16",), old, new, _LANDS, config=_REUSED)
        for name, old, new in (
            ("no wait for K", "mbarrier_wait(k_full + stage, parity);", ";"),
            ("no wait for V", "mbarrier_wait(v_full + stage, parity);", ";"),
            ("K is not given back", "if (lane == 0) mbarrier_arrive(k_empty + stage);", ";"),
            ("V is not given back", "if (lane == 0) mbarrier_arrive(v_empty + stage);", ";"),
            (
                "a stage is filled before it is read",
                "mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);",
                ";",
            ),
            (
                "the producer waits for the other phase",
                "mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);",
                "mbarrier_wait(empty + stage, tile / STAGES % 2);",
            ),
            ("tiles are not expected", "mbarrier_arrive_expect(full + stage, TILE_BYTES);", ";"),
            (
                "half of a tile is expected",
                "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
                "mbarrier_arrive_expect(full + stage, TILE_BYTES / 2);",
            ),
            ("barriers used before they are there", "__syncthreads();", ";"),
        )
    ),
    *(
        Mutation(name, ("v17", "v18"), old, ";", _LANDS, config=_REUSED)
        for name, old in (
            ("no wait for the first K", "mbarrier_wait(k_full, 0);"),
            ("no wait for K", "mbarrier_wait(k_full + stage, parity_of(tile));"),
            ("no wait for V", "mbarrier_wait(v_full + last_stage, parity_of(tile - 1));"),
            (
                "no wait for the last V",
                "mbarrier_wait(v_full + (tiles - 1) % STAGES, parity_of(tiles - 1));",
            ),
            ("K is not given back", "if (lane == 0) mbarrier_arrive(k_empty + stage);"),
            ("V is not given back", "if (lane == 0) mbarrier_arrive(v_empty + last_stage);"),
        )
    ),
    *(
        Mutation(name, variants, f"if (lane == 0) {arrival}", arrival, _TOO_MANY, config=_REUSED)
        for name, variants, arrival in (
            ("every lane gives K back", WARP_SPECIALIZED, "mbarrier_arrive(k_empty + stage);"),
            ("every lane gives V back", ("v16",), "mbarrier_arrive(v_empty + stage);"),
            (
                "every lane gives V back",
                ("v17", "v18"),
                "mbarrier_arrive(v_empty + last_stage);",
            ),
        )
    ),
    Mutation(
        "one consumer gives V back",
        WARP_SPECIALIZED,
        "mbarrier_init(v_empty + stage, 4 * CONSUMERS);",
        "mbarrier_init(v_empty + stage, 4);",
        (*_TOO_MANY, "copy not complete"),
        config=_REUSED,
    ),
    *(
        Mutation(name, ("v17", "v18"), old, ";", ("barrier", "turn"), config=_REUSED)
        for name, old in (
            (
                "nobody has the first turn",
                "if (is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);",
            ),
            (
                "the last turn is kept",
                "if (!is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);",
            ),
        )
    ),
    Mutation("S is used before it is there", ("v18",), "wgmma_wait<1>();", ";", ("wgmma", "NaN")),
    Mutation(
        "the producer keeps too many registers",
        WARP_SPECIALIZED,
        "CONSUMERS == 2 ? 24 : 32",
        "CONSUMERS == 2 ? 40 : 32",
        ("setmaxnreg",),
    ),
    # ---- TMA ----
    Mutation(
        "K at the head of Q",
        ("v15",),
        "tile * BLOCK_N, kv_head,",
        "tile * BLOCK_N, head,",
        ("wrong head", "K/V head", "head"),
        "gqa",
        nth=0,
    ),
    Mutation("O stored before it is there", HOPPER, "async_proxy_fence();", ";", ("fence",)),
    Mutation(
        "O stored without a barrier",
        HOPPER,
        "named_barrier(1 + group, WARPGROUP);",
        ";",
        _RACE,
    ),
    Mutation("stores not waited for", HOPPER, "tma_store_wait();", ";", ("TMA store",)),
    Mutation("stores not committed", HOPPER, "tma_store_commit();", ";", ("TMA store",)),
    # ---- wgmma ----
    *(
        Mutation(f"no fence before {what}", HOPPER, "wgmma_fence();", ";", ("fence",), nth=nth)
        for nth, what in enumerate(("S", "O"))
    ),
    *(
        Mutation(f"no commit of {what}", HOPPER, "wgmma_commit();", ";", ("wgmma", "NaN"), nth=nth)
        for nth, what in enumerate(("S", "O"))
    ),
    *(
        Mutation(
            f"no wait for {what}",
            ("v15", "v16"),
            "wgmma_wait<0>();",
            ";",
            ("wgmma", "NaN"),
            nth=nth,
        )
        for nth, what in enumerate(("S", "O"))
    ),
    Mutation(
        "S adds to what was there", HOPPER, "wgmma<false>(", "wgmma<true>(", ("s_rmem", "NaN")
    ),
    Mutation("the next 16 columns are 32 further", HOPPER, "% STEPS * 32", "% STEPS * 64", _WRONG),
    Mutation(
        "V's next 16 rows are 8 further",
        HOPPER,
        "step * 16 * ROW_BYTES",
        "step * 8 * ROW_BYTES",
        _WRONG,
    ),
    Mutation("another swizzle", HOPPER, "? 1 : 2;", "? 3 : 2;", _WRONG, header="hopper.cuh"),
    Mutation(
        "another stride",
        HOPPER,
        "= 8 * ROW_BYTES >> 4",
        "= 4 * ROW_BYTES >> 4",
        _WRONG,
        header="hopper.cuh",
    ),
    Mutation(
        "A by columns", HOPPER, '", 1, 1, 0, 0;"', '", 1, 1, 1, 0;"', _WRONG, header="hopper.cuh"
    ),
    Mutation(
        "V by columns", HOPPER, '", 1, 1, 1, 1;"', '", 1, 1, 1, 0;"', _WRONG, header="hopper.cuh"
    ),
)
