"""Take own kernels into use: for this process, or kept for all of this user's.

Only a person adds one: on the command line, in the environment, or on the Tune page. No snapshot,
journal or link does, as an own kernel is compiled and run with that person's rights.
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

from engine.attention.config import OWN, VARIABLE, kept_kernels, kept_path
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
_PARENT: Final = ".parent.json"  # of a copy: what it was made of
_BROUGHT: Final = re.compile(r"[A-Za-z0-9_][\w.+-]{0,80}\.(?:cu|cuh|h|hpp|inl|toml|cubin)")


def use_kernel(path: Path) -> Variant:
    """Take a kernel into use in this process and those that it starts.

    Raises:
        UnknownName: it is not called a .cu file.
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


# What is no name of a variant; without a description `use_kernel` says what it takes.
_SOURCES: Final = (".cu", ".cubin", ".cuh", ".cpp", ".ptx", ".py")


def kernel_named(text: str) -> str:
    """A variant by its name as it is, or by the path of an own kernel, which is taken into use.

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
    """The source of an own kernel. UnknownName where there is no such file."""
    path = Path(text)
    if not path.expanduser().is_file():
        raise UnknownName(f"There is no file {text}: name a .cu file.")
    return path


def _described_by(path: Path) -> Path:
    """The source that describes a cubin of its name, where there is one; else the file itself."""
    source = path.with_suffix(".cu")
    return source if path.suffix == ".cubin" and source.is_file() else path


def check_kernel(path: Path) -> Variant:
    """The variant of a file that is to become an own kernel.

    Raises:
        UnknownName, InvalidKernel: as `use_kernel`.
        InvalidCubin: machine code without a description, and damaged.
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


def keep_kernel(path: Path) -> Variant:
    """Take a kernel into use from now on, in every process of this user.

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
    _write([*(kept for kept in kept_kernels() if kept != path), path])
    return variant


def bring_files(contents: Mapping[str, bytes]) -> list[Path]:
    """Keep files that were dropped on a page in one folder of the user's data, and name its `.cu`s.

    Args:
        contents: of each file, by its plain name: sources, headers, descriptions.

    Raises:
        InvalidKernel: a name is none of a source's, or no file is a `.cu`.
        StoreError: they cannot be written.
    """
    for name in contents:
        if not _BROUGHT.fullmatch(name):
            raise InvalidKernel(
                f"{name} is no name of a source: bring .cu, .cuh, .h, .hpp, .inl, .toml and "
                ".cubin files, without folders.",
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
    with files.as_sentence(f"The files cannot be written to {folder}", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            if not (folder / name).is_file():
                files.write(folder / name, data)
    return [folder / name for name in sorted(contents) if name.endswith(".cu")]


def fork_kernel(variant: Variant) -> Variant:
    """Copy a kernel with what it includes into the user's data, and take the copy into use.

    Its parent's texts stand beside it, so that the difference is known whatever becomes of them.

    Raises:
        CompileError: a file cannot be read.
        InvalidKernel: two of its headers have one name.
        StoreError: the files cannot be written.
    """
    sources = included_files(variant.source, variant.include_folders)
    base = re.sub(r"^my_|_\d+$", "", variant.id)
    folder = data_folder() / "forks"
    taken = {kept.stem for kept in kept_kernels()}
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
    with files.as_sentence(f"The copy cannot be written to {folder / name}", remedy):
        files.make_folder(folder / name)
        for file, text in written.items():
            files.write(folder / name / file, text.encode())
    return keep_kernel(folder / name / f"{name}.cu")


@dataclass(frozen=True, slots=True)
class Parent:
    """What a kernel was copied from."""

    id: str
    file: str  # the name of its source
    texts: Mapping[str, str]  # as they were then, by the name in the copy's folder


def parent_of(source: Path) -> Parent | None:
    """The parent from which `fork_kernel` made this file; None for other files."""
    try:
        raw = json.loads(files.read(source.with_name(f"{source.stem}{_PARENT}"), _MAX_BYTES))
        return Parent(str(raw["id"]), str(raw["file"]), dict(raw["texts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_kernel(variant_id: str) -> None:
    """Take a kept kernel off the list; the file stays. Raises StoreError as `keep_kernel`."""
    _write([kept for kept in kept_kernels() if kept.stem != variant_id])


def _write(paths: list[Path]) -> None:
    target = kept_path()
    text = json.dumps({"kernels": [str(path) for path in paths]}, indent=2) + "\n"
    remedy = "free some disk space, or set ATTUNE_DATA_DIR to a folder that can be written"
    with files.as_sentence(f"The list of own kernels cannot be written to {target}", remedy):
        files.make_folder(target.parent)
        files.write(target, text.encode())
