"""Mistakes around Hopper's asynchronous instructions: every wait, fence, arrival and barrier."""

from __future__ import annotations

from planted_bugs.mutation import HOPPER, Mutation

_RACE = (
    "shared memory race",
    "with no barrier since",
    "no barrier orders",
    "a barrier is missing",
    "not arrived",
    "has not landed",
)
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
            f"no wait for {what}", ("v15",), "wgmma_wait<0>();", ";", ("wgmma", "NaN"), nth=nth
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
