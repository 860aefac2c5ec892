"""Bugs that only the machine code shows: what a compiler may do with the source, or the hardware
with the launch, and the host build does otherwise.

To the host build an operand of `asm` is the variable itself, and it knows neither how many
registers the compiler gave a thread nor for how many threads.
"""

from __future__ import annotations

from planted_bugs.mutation import ONE_TILE, PERSISTENT, Mutation

COMPILER: tuple[Mutation, ...] = (
    # The compiler keeps nothing of what D held before.
    Mutation(
        "sums of wgmma that are outputs alone",
        (*ONE_TILE, *PERSISTENT),
        '"+f"(d[i])',
        '"=f"(d[i])',
        ("by machine code",),
        header="hopper.cuh",
    ),
    Mutation(
        "launch bounds of half the threads",
        ("v08", "v15"),
        "__launch_bounds__(NUM_THREADS, 1)",
        "__launch_bounds__(NUM_THREADS / 2, 1)",
        ("__launch_bounds__",),
    ),
    Mutation(
        "consumers take fewer registers than they use",
        ("v16", "v18"),
        "CONSUMERS == 2 ? 240 : 160",
        "CONSUMERS == 2 ? 88 : 88",
        ("registers",),
    ),
)
