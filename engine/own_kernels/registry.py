"""The registry of own kernels: for this process, or for all processes of the user.

Only the user adds own kernels: on the command line, in the environment, or on the Tune page.
Snapshots, journals and links cannot, because own kernels run with the user's rights.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final

from engine.attention.config import OWN, VARIABLE, added_kernels, added_kernels_path
from engine.base import files
from engine.base.errors import InvalidKernel, UnknownName
from engine.base.files import data_folder
from engine.cuda_source.sources import included_files, read_source
from kernels.description import MissingDescription
from kernels.ladder import LADDER
from kernels.source_text import read_text, sidecar_of
from kernels.toml_block import KernelDescriptionError
from kernels.variant import AUTO, KERNELS_DIR, Variant

_MAX_BYTES: Final = 1 << 20
_PARENT: Final = ".parent.json"  # of a copy: its parent
_BROUGHT: Final = re.compile(r"[A-Za-z0-9_][\w.+-]{0,80}\.(?:cu|cuh|h|hpp|inl|toml|cubin)")


def use_kernel(path: Path) -> Variant:
    """Register a kernel in this process and in its child processes.

    Raises:
        UnknownName: the name does not end in .cu.
        InvalidKernel: there is no such file, it has no description (`block` is then one to
            paste), or there is a mistake in the description.
    """
    path = _described_by(path.expanduser().absolute())
    if path.parent == KERNELS_DIR and path.stem in LADDER.names():
        return LADDER.by_id(path.stem)
    variant = check_kernel(path)
    others = [text for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]
    if str(path) not in others:
        os.environ[VARIABLE] = os.pathsep.join([str(path), *others])
    return variant


# Anything that is not a variant's name; without a description, `use_kernel` reports what is needed.
_SOURCES: Final = (".cu", ".cubin", ".cuh", ".cpp", ".ptx", ".py")


def kernel_named(text: str) -> str:
    """Return a variant's name unchanged, or register the own kernel at this path and return its
    name.

    Raises:
        UnknownName: there is no such file.
        InvalidKernel: it has no description, or one with a mistake.
    """
    if "/" not in text and "\\" not in text and not text.endswith(_SOURCES):
        return text
    if text.endswith(".py"):
        raise InvalidKernel(
            f"{text} is Python: write the CUDA source that it holds, as that of a RawKernel, to a "
            ".cu file and name that.",
            code="python_file",
        )
    return use_kernel(source_named(text)).id


def source_named(text: str) -> Path:
    """Return the source of an own kernel. Raises UnknownName if there is no such file."""
    path = Path(text)
    if path.expanduser().is_dir():
        raise UnknownName(f"{text} is a folder: name a .cu file in it.", code="kernel_is_a_folder")
    if not path.expanduser().is_file():
        raise UnknownName(f"There is no file {text}: name a .cu file.", code="no_such_cu_file")
    return path


def _described_by(path: Path) -> Path:
    """Return the source that describes the cubin with its name, if there is one; else the file."""
    source = path.with_suffix(".cu")
    return source if path.suffix == ".cubin" and source.is_file() else path


def check_kernel(path: Path) -> Variant:
    """Return the variant of a file that is to become an own kernel.

    Raises:
        UnknownName, InvalidKernel: as `use_kernel`.
        InvalidCubin: a damaged cubin without a description.
    """
    from engine.own_kernels.draft import draft_block
    from engine.own_kernels.draft_cubin import draft_of_cubin
    from kernels.description import read_own

    if path.suffix == ".cubin":
        raise InvalidKernel(
            f"{path.name} is machine code, which does not contain its launch or what it computes: "
            f"check each line of the block below, put it into {path.stem}.cu beside the file, and "
            "name that. Without a description, `attune sass FILE.cubin --grid X --block N --arg …` "
            "gives resources, instructions and simulated time.",
            draft_of_cubin(path),
            code="cubin_without_description",
        )
    if path.suffix != ".cu":
        raise UnknownName(f"{path} is not a kernel source: name a .cu file.")
    if path.stem in LADDER.names():
        raise InvalidKernel(
            f"{path.stem} is a variant of the ladder: rename {path}.", code="variant_name_of_ladder"
        )
    if path.stem == AUTO:
        raise InvalidKernel(f"{AUTO} stands for the variant that is chosen: rename {path}.")
    try:
        return read_own(path)
    except MissingDescription:
        block = draft_block(read_text(path), path)
        raise InvalidKernel(
            f"{path.name} has no description: check each line of the block below and put it at the "
            f"top of the file, or without the comment marks into {path.stem}.attune.toml beside "
            "it.",
            block,
        ) from None
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None


def register_kernel(path: Path) -> Variant:
    """Register a kernel permanently, for every process of this user.

    Raises:
        UnknownName, InvalidKernel: as `use_kernel`.
        StoreError: the list cannot be written.
    """
    path = _described_by(path.expanduser().absolute())
    variant = check_kernel(path)
    other = OWN.find(variant.id)
    if other is not None and other.path != path:
        raise InvalidKernel(
            f"{variant.id} is {other.path} already: rename one of the two files.",
            code="variant_name_taken",
        )
    _write([*(kept for kept in added_kernels() if kept != path), path])
    return variant


def bring_files(contents: Mapping[str, bytes]) -> list[Path]:
    """Store dropped files in a folder of the user's data; return its `.cu` files.

    Args:
        contents: contents by plain file name: sources, headers, descriptions.

    Raises:
        InvalidKernel: a name is not allowed, or no file is a `.cu`.
        StoreError: they cannot be written.
    """
    for name in contents:
        if not _BROUGHT.fullmatch(name):
            raise InvalidKernel(
                f"{name} is not a valid name of a source: give .cu, .cuh, .h, .hpp, .inl, .toml "
                "and .cubin files, without folders.",
                code="file_not_of_source",
            )
    if not any(name.endswith(".cu") for name in contents):
        raise InvalidKernel(
            "Of these files, none of them is a .cu file: bring the kernel's too.", code="no_cu_file"
        )
    digest = hashlib.sha256()
    for name, data in sorted(contents.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    folder = data_folder() / "brought" / digest.hexdigest()[:16]
    remedy = "free some disk space, or set ATTUNE_DATA_DIR to a folder that can be written"
    with files.explain_os_error(f"The files cannot be written to {folder}", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            if not (folder / name).is_file():
                files.write(folder / name, data)
    return [folder / name for name in sorted(contents) if name.endswith(".cu")]


def fork_kernel(variant: Variant) -> Variant:
    """Copy a kernel and its headers into the user's data, and register the copy.

    The parent's texts are stored beside it, so that the difference stays known if the parent
    changes.

    Raises:
        CompileError: a file cannot be read.
        InvalidKernel: two of its headers have one name.
        StoreError: the files cannot be written.
    """
    sources = included_files(variant.source, variant.include_folders)
    base = re.sub(r"^my_|_\d+$", "", variant.id)
    folder = data_folder() / "forks"
    taken = {kept.stem for kept in added_kernels()}
    name = next(
        name
        for name in chain([f"my_{base}"], (f"my_{base}_{n}" for n in count(2)))
        if name not in taken and not (folder / name).exists()
    )
    texts: dict[str, str] = {}
    for path in sources:
        kept_as = f"{name}.cu" if path == variant.source else path.name
        if kept_as in texts:
            raise InvalidKernel(
                f"{variant.id} includes two files called {path.name}: copy it by hand."
            )
        texts[kept_as] = read_source(path)
    parent = {"id": variant.id, "file": variant.source.name, "texts": texts}
    written = {**texts, f"{name}{_PARENT}": json.dumps(parent, ensure_ascii=False)}
    described = sidecar_of(variant.source)
    if described.is_file():
        written[sidecar_of(Path(f"{name}.cu")).name] = described.read_text(encoding="utf-8")
    remedy = "free some disk space, or set ATTUNE_DATA_DIR to a folder that can be written"
    with files.explain_os_error(f"The copy cannot be written to {folder / name}", remedy):
        files.make_folder(folder / name)
        for file, text in written.items():
            files.write(folder / name / file, text.encode())
    return register_kernel(folder / name / f"{name}.cu")


@dataclass(frozen=True, slots=True)
class Parent:
    """The kernel from which another was copied."""

    id: str
    file: str  # the name of its source
    texts: Mapping[str, str]  # at the time of the copy, by name in the copy's folder


def parent_of(source: Path) -> Parent | None:
    """Return the parent of a file made by `fork_kernel`; None for other files."""
    try:
        raw = json.loads(files.read(source.with_name(f"{source.stem}{_PARENT}"), _MAX_BYTES))
        return Parent(str(raw["id"]), str(raw["file"]), dict(raw["texts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_kernel(variant_id: str) -> None:
    """Remove a kernel from the list; its file is kept. Raises StoreError as `register_kernel`."""
    _write([kept for kept in added_kernels() if kept.stem != variant_id])


def _write(paths: list[Path]) -> None:
    target = added_kernels_path()
    text = json.dumps({"kernels": [str(path) for path in paths]}, indent=2) + "\n"
    remedy = "free some disk space, or set ATTUNE_DATA_DIR to a folder that can be written"
    with files.explain_os_error(f"The list of own kernels cannot be written to {target}", remedy):
        files.make_folder(target.parent)
        files.write(target, text.encode())
