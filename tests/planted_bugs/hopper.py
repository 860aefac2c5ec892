"""Bugs in Hopper's asynchronous instructions: every wait, fence, arrival and barrier."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.cuda_on_host.error_kinds import ErrorKind
from kernels.ladder import by_id
from planted_bugs.causes import COPY, OUT_OF_BOUNDS
from planted_bugs.mutation import HOPPER, ONE_TILE, PERSISTENT, WARP_SPECIALIZED, Mutation

_REUSED = {"block_n": 64}  # more tiles than stages
_SEVERAL = {"num_ctas": 4, "block_n": 64}  # also more query tiles than CTAs
_TOO_MANY = (ErrorKind.TOO_MANY_ARRIVALS,)
LANDS = (
    ErrorKind.SHARED_RACE,
    "no_barrier_since",
    "no_barrier_orders",
    "read_before_written",
    "mbarrier",
    *COPY,
)
_WRONG = (
    "largest_error_exceeds",
    ErrorKind.COPY_NOT_COMPLETE,
    ErrorKind.SHARED_RACE,
    ErrorKind.PROXY_FENCE,
)
# elements of other positions

# ---- each statement that orders accesses, removed ----
_ORDERS = re.compile(
    r"\b(mbarrier_(?:wait|arrive|arrive_expect|init_fence)|named_barrier(?:_arrive)?"
    r"|async_proxy_fence|wgmma_(?:fence|commit|wait)|tma_store_(?:commit|wait)|__sync(?:threads|warp))"
    r"(?:<\d+>)?\([^;]*\);"
)
_WORDS = {
    "mbarrier_wait": LANDS,
    "mbarrier_arrive": LANDS,
    "mbarrier_arrive_expect": LANDS,
    "mbarrier_init_fence": ("fence.mbarrier_init",),
    "named_barrier": (*LANDS, "barrier"),
    "named_barrier_arrive": ("barrier",),
    "async_proxy_fence": ("fence.proxy.async",),
    "wgmma_fence": ("wgmma_fence",),
    "wgmma_commit": ("wgmma", "NaN"),
    "wgmma_wait": ("wgmma", "NaN"),
    "tma_store_commit": ("TMA store",),
    "tma_store_wait": ("TMA store",),
    "__syncthreads": LANDS,
    "__syncwarp": LANDS,
}


def ordering_statements(text: str) -> Iterator[re.Match[str]]:
    """Return the waits, arrivals, fences, commits and barriers of a kernel's source."""
    return _ORDERS.finditer(re.sub(r"//[^\n]*", lambda c: " " * len(c[0]), text))


def _left_out(variant: str) -> Iterator[Mutation]:
    text = by_id(variant).source.read_text(encoding="utf-8")
    config = _SEVERAL if variant in PERSISTENT else {} if variant == "v22" else _REUSED
    for statement in ordering_statements(text):
        old, nth = statement[0], text.count(statement[0], 0, statement.start())
        name = f"without {old}" + f", place {nth + 1}" * (text.count(old) > 1)
        yield Mutation(name, (variant,), old, ";", _WORDS[statement[1]], nth=nth, config=config)


MUTATIONS: tuple[Mutation, ...] = (
    *(mutation for variant in HOPPER for mutation in _left_out(variant)),
    # ---- mbarriers ----
    Mutation(
        "the phase of every tile is its number's",
        ("v15",),
        "mbarrier_wait(full + stage, tile / STAGES % 2);",
        "mbarrier_wait(full + stage, tile % 2);",
        LANDS,
    ),
    Mutation(
        "Q arrives without its bytes",
        ONE_TILE,
        "mbarrier_arrive_expect(q_full, Q_BYTES);",
        "mbarrier_arrive(q_full);",
        LANDS,
    ),
    *(
        Mutation(
            name,
            ("v15",),
            "mbarrier_arrive_expect(full + stage, 2 * TILE_BYTES);",
            f"mbarrier_arrive_expect(full + stage, {size});",
            LANDS,
        )
        for name, size in (
            ("half of a tile is expected", "TILE_BYTES"),
            ("more than a tile is expected", "2 * TILE_BYTES + 16"),
        )
    ),
    Mutation(
        "half of a tile is expected",
        WARP_SPECIALIZED,
        "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
        "mbarrier_arrive_expect(full + stage, TILE_BYTES / 2);",
        LANDS,
        config=_REUSED,
    ),
    Mutation(
        "the producer waits for the other phase",
        WARP_SPECIALIZED,
        "mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);",
        "mbarrier_wait(empty + stage, tile / STAGES % 2);",
        LANDS,
        config=_REUSED,
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
        (*_TOO_MANY, ErrorKind.COPY_NOT_COMPLETE, "copy_overwrites_read"),
        config=_REUSED,
    ),
    Mutation(
        "the producer keeps too many registers",
        WARP_SPECIALIZED,
        "CONSUMERS == 2 ? 24 : 32",
        "CONSUMERS == 2 ? 40 : 32",
        ("setmaxnreg",),
    ),
    # ---- Persistent CTAs ----
    *(
        Mutation(name, PERSISTENT, old, new, words, config=_SEVERAL)
        for name, old, new, words in (
            (
                "the next Q in the phase of the last",
                "mbarrier_wait(q_full + round % 2, round / 2 % 2);",
                "mbarrier_wait(q_full + round % 2, round / 2 % 2 ^ 1);",
                LANDS,
            ),
            (
                "the producer waits for the other phase",
                "mbarrier_wait(empty + stage, count / STAGES % 2 ^ 1);",
                "mbarrier_wait(empty + stage, count / STAGES % 2);",
                LANDS,
            ),
            *(
                (name, f"if (lane == 0) {arrival}", arrival, _TOO_MANY)
                for name, arrival in (
                    ("every lane gives V back", "mbarrier_arrive(v_empty + last_stage);"),
                    ("every lane says that O is there", "mbarrier_arrive(o_full + round % 2);"),
                )
            ),
            (
                "rows start with what the last query tile left",
                "        start_rows();\n        mbarrier_wait(q_full + round",
                "        mbarrier_wait(q_full + round",
                ("largest_error_exceeds",),
            ),
            (
                "O starts with what the last query tile left",
                "        start_o();\n        pack_p();",
                "        pack_p();",
                ("largest_error_exceeds",),
            ),
            (
                "V of a query tile's last keys at the next one's head",
                "last_kv_head = kv_head;",
                "last_kv_head = kv_head + 1;",
                ("largest_error_exceeds", "head", "TMA", *OUT_OF_BOUNDS),
            ),
        )
    ),
    *(
        Mutation("the producer keeps too many registers", (variant,), old, new, ("setmaxnreg",))
        for variant, old, new in (
            ("v19", "CONSUMERS == 2 ? 40 : 32", "CONSUMERS == 2 ? 56 : 32"),
            ("v20", "PRODUCER_REGISTERS = 32;", "PRODUCER_REGISTERS = 40;"),
        )
    ),
    # ---- TMA ----
    Mutation(
        "K at the head of Q",
        ("v15",),
        "tile * BLOCK_N, kv_head,",
        "tile * BLOCK_N, head,",
        ("K/V head", "head"),
        "gqa",
        nth=0,
    ),
    # ---- wgmma ----
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
    Mutation(
        "another swizzle",
        HOPPER,
        "= ROW_BYTES == 128 ? 1",
        "= ROW_BYTES == 128 ? 3",
        _WRONG,
        header="hopper.cuh",
    ),
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
    Mutation("V by columns", HOPPER, '", 1, 1, 1;"', '", 1, 1, 0;"', _WRONG, header="hopper.cuh"),
    # ---- all keys at once ----
    *(
        Mutation(name, ("v22",), old, new, words, shapes, nth)
        for name, old, new, words, shapes, nth in (
            (
                "O adds to what was there",
                "wgmma<false>(",
                "wgmma<true>(",
                ("acc_rmem", "NaN"),
                "odd",
                1,
            ),
            (
                "no tail mask",
                ": seqlen_kv) - pair",
                ": KEYS) - pair",
                ("bug_reads_past_head", "bug_missing_tail_mask"),
                "odd",
                None,
            ),
            ("tail mask off by one", ">= visible[", "> visible[", ("one_padded_key",), "odd", None),
            (
                "sees the next key",
                "query + 1)",
                "query + 2)",
                ("bug_key_too_many", "bug_misses_own_key"),
                "causal",
                None,
            ),
            (
                "the second half of K is the first",
                "half * HALF_KEYS, kv_head",
                "0, kv_head",
                _WRONG,
                "odd",
                None,
            ),
            (
                "K at the head of Q",
                "HALF_KEYS, kv_head,",
                "HALF_KEYS, head,",
                ("head",),
                "gqa",
                None,
            ),
            (
                "O's rows in other chunks",
                "* ROW_BYTES / 128 % CHUNKS",
                "% CHUNKS / 2",
                _WRONG,
                "odd",
                None,
            ),
        )
    ),
)
