"""Draft a description of a kernel in a cubin from the entries in the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.machine_code.cubin import Cubin, Entry
from engine.machine_code.cubin_files import read_cubin_file

_POINTERS = ("q", "k", "v", "out")  # in the usual order
_NUMBERS = ("seqlen", "softmax_scale")
_POINTER_BYTES = 8


def draft_of_cubin(path: Path) -> str:
    """Return a description block for a file beside the cubin. Raises InvalidCubin if it cannot be
    read."""
    cubin = read_cubin_file(path)
    entry = next(iter(cubin.entries.values()))
    others = ", ".join(name for name in cubin.entries if name != entry.name)
    lines = (
        f'cubin = "{path.name}"  # {_arch_note(cubin)}; of several archs a list',
        "head_dims = [64]  # what it was compiled for",
        'dtypes = ["float16"]  # not in the file',
        "causal = [false]  # or [true], if the mask is compiled in: not in the file",
        "",
        "[[passes]]",
        f'entry = "{entry.name}"{f"  # there are also {others}" if others else ""}',
        'grid = ["ceil_div(seqlen, 64)", "num_heads", "batch"]  # CTAs',
        f"threads = {_threads(entry)}",
        "smem_bytes = 0  # dynamic: what the compiler says beside the file",
        "args = [  # guessed from the sizes of the parameters alone",
        '    # one that is not used: {name = "…", ctype = "null"}',
        '    # another number: {name = "…", ctype = "int32", value = "…"}',
        *(f"    {argument}," for argument in _arguments(entry)),
        "]",
    )
    return "\n".join(["/* attune", *lines, "*/"])


def _arch_note(cubin: Cubin) -> str:
    return f"compiled for {cubin.arch}"


def _threads(entry: Entry) -> str:
    if entry.required_block is not None:
        return str(list(entry.required_block))
    if entry.max_threads < 1024:
        return str(entry.max_threads)
    return "128  # of a CTA: not in the file"


def _arguments(entry: Entry) -> Iterator[str]:
    pointers, numbers = iter(_POINTERS), iter(_NUMBERS)
    for number, parameter in enumerate(entry.parameters, 1):
        if parameter.size == _POINTER_BYTES:
            name = next(pointers, "")
            yield f'"{name}"' if name else f'{{name = "pointer_{number}", ctype = "null"}}'
        elif parameter.size == 4:
            name = next(numbers, "")
            own = f'{{name = "number_{number}", ctype = "int32", value = "num_heads"}}'
            yield f'"{name}"' if name else own
        else:
            yield f'{{name = "parameter_{number}", fields = []}}  # {parameter.size} bytes'
