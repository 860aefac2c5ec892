"""The registry of own kernels: those of `ATTUNE_KERNELS`, then those that were added and kept.

Only a person adds one: on the command line, in the environment, or on the Tune page. No snapshot,
journal or link does, as an own kernel is compiled and run with that person's rights.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final

from engine.base import files
from engine.base.errors import InvalidKernel, UnknownName
from engine.base.files import data_folder
from engine.cuda_source.sources import included_files, read_source
from kernels.description import MissingDescription
from kernels.ladder import LADDER, KernelFile
from kernels.source_text import has_block, read_text, sidecar_of
from kernels.toml_block import KernelDescriptionError
from kernels.variant import AUTO, KERNELS_DIR, ProblemLike, Variant

VARIABLE: Final = "ATTUNE_KERNELS"
_MAX_BYTES: Final = 1 << 20
_PARENT: Final = ".parent.json"  # of a copy: what it was made of
_BROUGHT: Final = re.compile(r"[A-Za-z0-9_][\w.+-]{0,80}\.(?:cu|cuh|h|hpp|inl|toml|cubin)")


def kept_path() -> Path:
    """Where the kernels that were added are listed."""
    return data_folder() / "kernels.json"


def kept_kernels() -> list[Path]:
    """The files that were added and kept; none where the list is missing or damaged."""
    try:
        listed = json.loads(files.read(kept_path(), _MAX_BYTES))
        return [Path(text) for text in listed["kernels"] if isinstance(text, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _places() -> Iterator[Path]:
    for text in os.environ.get(VARIABLE, "").split(os.pathsep):
        if text.strip():
            yield Path(text.strip()).expanduser().absolute()
    yield from kept_kernels()


class OwnKernels:
    """The variants of files and folders that a person has named; changes are seen at once.

    Of a folder, the `.cu` files that describe themselves count. Of two files of one name, the first
    counts, and the other is a mistake.

    Args:
        places: the files and folders of now, in order.
        taken: names that an own kernel cannot have.
    """

    def __init__(
        self, places: Callable[[], Iterable[Path]], taken: Callable[[], Collection[str]]
    ) -> None:
        self._places = places
        self._taken = taken
        self._files: dict[str, KernelFile] = {}  # by id
        self._clashes: dict[Path, str] = {}  # and the sentence
        self._looked_at: tuple[Path, ...] = ()
        self._lock = threading.Lock()

    def variants(self) -> tuple[Variant, ...]:
        """All variants of this moment."""
        return tuple(f.variant for f in self._read() if f.variant is not None)

    @property
    def errors(self) -> tuple[KernelDescriptionError, ...]:
        """The mistakes of this moment, at most one for each file."""
        mistakes = [f.error for f in self._read() if f.error is not None]
        mistakes += [KernelDescriptionError(path, 1, why) for path, why in self._clashes.items()]
        return tuple(mistakes)

    def find(self, name: str) -> KernelFile | None:
        """The file of this id."""
        self._read()
        return self._files.get(name)

    def seen(self, name: str) -> KernelFile | None:
        """`find` that reads no other file: None unless it was found in the same places before."""
        with self._lock:
            known = self._files.get(name)
            if known is None or tuple(self._places()) != self._looked_at:
                return None
            return known if known.refresh() else None

    def _read(self) -> list[KernelFile]:
        with self._lock:
            files: dict[str, KernelFile] = {}
            known = {file.path: file for file in self._files.values()}
            self._clashes = {}
            taken = self._taken()
            self._looked_at = tuple(self._places())
            for path in dict.fromkeys(self._paths()):
                file = known.get(path) or KernelFile(path, is_own=True)
                if not file.refresh():
                    continue
                if path.stem in taken:
                    self._clashes[path] = (
                        f"{path.stem} is a variant of the ladder: rename the file."
                    )
                elif path.stem in files:
                    other = files[path.stem].path
                    self._clashes[path] = f"{path.stem} is {other} already: rename one of the two."
                else:
                    files[path.stem] = file
            self._files = files
            return list(files.values())

    def _paths(self) -> Iterator[Path]:
        for place in self._looked_at:
            if place.is_dir():
                yield from (p for p in sorted(place.glob("*.cu")) if describes_itself(p))
            elif place.suffix == ".cu":
                yield place


def has_description(source: Path) -> bool:
    """Whether a `.cu` file has a description as a variant; no where it cannot be read."""
    try:
        return has_block(read_text(source))
    except KernelDescriptionError:
        return False


def describes_itself(source: Path) -> bool:
    """Whether a description stands in a `.cu` file or beside it."""
    return sidecar_of(source).is_file() or has_description(source)


OWN: Final = OwnKernels(_places, LADDER.names)


def all_variants() -> tuple[Variant, ...]:
    """The ladder of both directions, then own kernels."""
    return (*LADDER.every(), *OWN.variants())


def variants_for(problem: ProblemLike) -> tuple[Variant, ...]:
    """The ladder and own kernels of a problem's direction."""
    wanted = "backward" in problem.features
    return tuple(v for v in all_variants() if v.is_backward == wanted)


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
    from kernels.source_text import read_text
    from kernels.toml_block import KernelDescriptionError

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
                ".cubin files, without folders."
            )
    if not any(name.endswith(".cu") for name in contents):
        raise InvalidKernel("Of these files, none of them is a .cu file: bring the kernel's too.")
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
