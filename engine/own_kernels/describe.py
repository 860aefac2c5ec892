"""Writing a description: into the source, or into a file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from engine.errors import InvalidKernel
from engine.records import files
from kernels.description import has_block, parse_variant, read_text, sidecar_of
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant

Where: TypeAlias = Literal["in the source", "beside it"]


def described(path: Path, toml: str) -> Variant:
    """The variant that a source would be with this description.

    Raises:
        InvalidKernel: the source cannot be read, or there is a mistake in the description.
    """
    try:
        return parse_variant(read_text(path), path, sidecar=toml, is_own=True)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake)) from None


def write_description(path: Path, toml: str, where: Where) -> Path:
    """Write a description that is right, and return the file that holds it now.

    Raises:
        InvalidKernel: as `described`, or the kernel has a description already.
        StoreError: the file cannot be written.
    """
    try:
        text = read_text(path)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake)) from None
    sidecar = sidecar_of(path)
    if has_block(text) or sidecar.exists():
        raise InvalidKernel(f"{path.name} has a description already: edit that one.")
    described(path, toml)
    target, content = (
        (path, f"/* attune\n{toml}*/\n{text}") if where == "in the source" else (sidecar, toml)
    )
    remedy = "mend its permissions, or save the description elsewhere by hand"
    with files.as_sentence(f"{target} cannot be written", remedy):
        files.write(target, content.encode())
    return target
