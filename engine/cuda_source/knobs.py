"""Tunables of the compiler: those that become one of its options instead of a macro.

A description lists them beside its own (`maxrregcount = {values = [0, 64], default = 0, …}`), so
that sweeps, predictions and tuned configs take them as any other; 0 leaves an option out. What a
source says itself needs none: `#pragma unroll UNROLL`, `__launch_bounds__(THREADS, MIN_CTAS)`,
which outranks maxrregcount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Macro → the option of a value other than 0.
_OPTIONS: dict[str, Callable[[str], str]] = {
    "MAXRREGCOUNT": lambda value: f"--maxrregcount={value}",
    "FAST_MATH": lambda _: "--use_fast_math",
    "PTXAS_LEVEL": lambda value: f"--ptxas-options=-O{value}",
}
_VERSION = "NVRTC"  # of the compiler itself: 1209 is 12.9; 0 is the one that CuPy loads


def options_of(defines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The compiler's options for macros: `-D` and what stands above, in their order."""
    options = []
    for name, value in defines:
        if name == _VERSION:
            continue
        option = _OPTIONS.get(name)
        if option is None:
            options.append(f"-D{name}={value}")
        elif value != "0":
            options.append(option(value))
    return tuple(options)


def compiler_version(defines: Iterable[tuple[str, str]]) -> int:
    """Which version of NVRTC macros ask for, 1209 for 12.9; 0: the usual one."""
    value = dict(defines).get(_VERSION, "0")
    return int(value) if value.isdigit() else 0
