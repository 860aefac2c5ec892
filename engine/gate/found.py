"""The kernels of one side: files with a description, and what each is made of."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.base.errors import AttuneError, CompileError
from engine.cuda_source.sources import included_files, read_sources
from engine.gate.trees import Tree
from engine.names import has_description
from kernels.description import parse_variant
from kernels.ladder import is_numbered
from kernels.source_text import read_sidecar, read_text, sidecar_of
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant


class OutsideTree(AttuneError):
    """A kernel includes a file that is not of its side."""


@dataclass(frozen=True, slots=True)
class Found:
    """One kernel of one side.

    `digest` is of everything it is made of: its text, its description, its headers.
    """

    id: str
    name: str  # of the file, from the tree's root
    path: Path
    digest: str
    files: tuple[str, ...] = ()  # it and its headers, from the tree's root
    fault: str = ""  # why it cannot be read; there is no variant then
    variant: Variant | None = field(default=None, compare=False)


def find_kernels(tree: Tree, patterns: Sequence[str]) -> dict[str, Found]:
    """The kernels of a side by id, in the order of their files' names.

    Args:
        patterns: of names from the root (`kernels/*.cu`); none: every file with a description.
    """
    found: dict[str, Found] = {}
    for name in tree.sources:
        path = tree.root / name
        if patterns and not any(fnmatch.fnmatchcase(name, p) for p in patterns):
            continue
        if not sidecar_of(path).is_file() and not has_description(path):
            continue
        kernel = _read(tree, name, path)
        # Of two files of one name each keeps its path as its id.
        found[name if kernel.id in found else kernel.id] = kernel
    return found


def _read(tree: Tree, name: str, path: Path) -> Found:
    of_ladder = is_numbered(path.name)
    kernel_id = path.stem[:3] if of_ladder else path.stem
    digest = hashlib.sha256(path.read_bytes())
    try:
        text, sidecar = read_text(path), read_sidecar(path)
        variant = parse_variant(text, path, sidecar=sidecar, is_own=not of_ladder)
        digest.update((sidecar or "").encode())
        paths = included_files(path, variant.include_folders)
        root = tree.root.resolve()
        for file in paths:
            if not file.resolve().is_relative_to(root):
                raise OutsideTree(
                    f"{name} includes {file}, which lies outside of {tree.label}: include files of "
                    "the repository alone."
                )
        for header in read_sources(path, variant.include_folders).included:
            digest.update(f"\0{header.name}\0{header.text}".encode())
    except (KernelDescriptionError, CompileError, OutsideTree) as error:
        return Found(kernel_id, name, path, digest.hexdigest(), (name,), fault=str(error))
    names = tuple(sorted(p.resolve().relative_to(root).as_posix() for p in paths))
    return Found(kernel_id, name, path, digest.hexdigest(), names, variant=variant)
