"""Bugs of two CTAs that load each other's K and V: v19 with `cluster_size = 2`."""

from __future__ import annotations

from planted_bugs.causes import INITIALISED, NEVER_WRITTEN, Words
from planted_bugs.hopper import LANDS
from planted_bugs.mutation import Mutation, Shapes

_PAIRS = {"num_ctas": 4, "block_n": 64, "cluster_size": 2}
_WRONG = ("largest_error_exceeds", "NaN", *NEVER_WRITTEN, "TMA")
_LEAVES = ("cluster", "peer_has_exited")
_ORDERS = ("cluster", *INITIALISED, *LANDS)

# Both CTAs deadlock: the error names the missing copies and arrivals, but not that the two took
# different query tiles.
NOT_NAMED = "every CTA has a place of its own"


def _bug(
    name: str, old: str, new: str, words: Words, nth: int | None = None, header: str = ""
) -> Mutation:
    shapes: Shapes = "causal" if "own keys" in name else "odd"
    if "odd query tile" in name:
        shapes = "odd tiles"
    return Mutation(name, ("v19",), old, new, words, shapes, nth, header, _PAIRS)


CLUSTERS: tuple[Mutation, ...] = (
    # ---- each statement that orders the two, removed ----
    *(
        _bug(f"without {old}, place {nth + 1}", old, ";", words, nth)
        for old, nth, words in (
            ("cluster_arrive();", 0, _ORDERS),
            ("cluster_wait();", 0, _ORDERS),
            ("cluster_arrive();", 1, _ORDERS),
            ("cluster_wait();", 1, _LEAVES),
        )
    ),
    *(
        _bug(f"without {old}", old, ";", LANDS)
        for old in (
            "tell_other_cta(k_empty + stage, lane);",
            "tell_other_cta(v_empty + last_stage, lane);",
            "tell_other_cta(k_empty, lane);",
        )
    ),
    _bug(
        "a CTA begins without the other",
        "cluster_arrive();\n        cluster_wait();",
        "__syncthreads();",
        _ORDERS,
    ),
    _bug(
        "a CTA leaves without the other",
        "if constexpr (CLUSTER_SIZE > 1) cluster_",
        "if constexpr (CLUSTER_SIZE > 2) cluster_",
        _LEAVES,
    ),
    # ---- targets of arrivals and copies ----
    _bug("a warp tells its own CTA twice", "cluster_rank() ^ 1", "cluster_rank()", LANDS),
    _bug("every lane tells the other CTA", "if (lane == 1) mbarrier", "mbarrier", LANDS),
    *(
        _bug(
            f"{name} is given back by one CTA",
            f"mbarrier_init({ring}_empty + stage, 4 * CONSUMERS * CLUSTER_SIZE);",
            f"mbarrier_init({ring}_empty + stage, 4 * CONSUMERS);",
            LANDS,
        )
        for name, ring in (("K", "k"), ("V", "v"))
    ),
    # ---- sources and destinations of loads ----
    _bug(
        "the other CTA's half is not expected",
        "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
        "mbarrier_arrive_expect(full + stage, TILE_BYTES / CLUSTER_SIZE);",
        LANDS,
    ),
    _bug(
        "the mask has the first CTA alone",
        "MASK = (1 << CTAS) - 1;",
        "MASK = 1;",
        LANDS,
        header="hopper.cuh",
    ),
    _bug(
        "the mask has the second CTA alone",
        "MASK = (1 << CTAS) - 1;",
        "MASK = 1 << (CTAS - 1);",
        LANDS,
        header="hopper.cuh",
    ),
    _bug("both halves in one place", "to + first * ROW_BYTES", "to", (*LANDS, *_WRONG)),
    _bug("the first half twice", "row + first", "row", _WRONG),
    # ---- query tiles of a cluster ----
    _bug(
        "a CTA visits its own keys alone",
        "tile_index + CLUSTER_SIZE - cluster_rank()",
        "tile_index + 1",
        (*LANDS, *_LEAVES),
    ),
    _bug(
        "an odd query tile is left out",
        "seqlen + CLUSTER_SIZE * BLOCK_M - 1",
        "seqlen",
        _WRONG,
    ),
    _bug(
        "both CTAs take the first of a pair",
        "tile_index * CLUSTER_SIZE + cluster_rank();",
        "tile_index * CLUSTER_SIZE;",
        ("index_without_cta",),
    ),
    _bug(NOT_NAMED, "blockIdx.x / CLUSTER_SIZE", "blockIdx.x", _WRONG),
)
