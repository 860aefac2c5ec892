"""Bugs that only machine code shows, because the compiler or the hardware may treat them otherwise
than the host build.

In the host build an operand of `asm` is the variable itself, and the numbers of registers and
threads that the compiler assumed are not known.
"""

from __future__ import annotations

from planted_bugs.mutation import ONE_TILE, PERSISTENT, Mutation

COMPILER: tuple[Mutation, ...] = (
    # The compiler does not keep D's previous value.
    Mutation(
        "sums of wgmma that are outputs alone",
        (*ONE_TILE, *PERSISTENT),
        '"+f"(d[i])',
        '"=f"(d[i])',
        ("host_build_differs",),
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
