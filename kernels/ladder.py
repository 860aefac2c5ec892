"""The ladder: the numbered `.cu` files of this folder, in order, as their blocks describe them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

from kernels.variant import KERNELS_DIR, ProblemLike, Variant

if TYPE_CHECKING:
    from kernels.toml_block import KernelDescriptionError

_SETTLED_NS = 1_000_000_000
_Stamp: TypeAlias = "tuple[int, int, int] | None"
_NUMBERED = re.compile(r"(?P<id>v\d\d)_\w+\.cu")
_NAMED = re.compile(r"v\d\d(?:_\w+)?")  # ids and names


def is_numbered(file_name: str) -> bool:
    """True if a file is named like those of the ladder: `v05_kv_split.cu`, whose id is v05."""
    return _NUMBERED.fullmatch(file_name) is not None


class KernelFile:
    """One `.cu` file, with its variant and its error.

    `variant` is the last one read without an error, `error` that of the present text; either may be
    None.

    Args:
        is_own: an own kernel: described in the file or beside it, and its id is the file's name.
    """

    def __init__(self, path: Path, *, is_own: bool = False) -> None:
        self.path = path
        self.variant: Variant | None = None
        self.error: KernelDescriptionError | None = None
        self._is_own = is_own
        self._sidecar: Path | None = None
        if is_own:
            from kernels.source_text import sidecar_of

            self._sidecar = sidecar_of(path)
        self._stamps: tuple[_Stamp, _Stamp] | None = None  # None: read again
        self._described: tuple[object, ...] | None = None

    def refresh(self) -> bool:
        """Read the file again if it has changed; return False if it no longer exists.

        If the description is unchanged, the variant stays the same object, so that it can be a key.
        """
        stamps = (_stamp(self.path), _stamp(self._sidecar) if self._sidecar is not None else None)
        if stamps[0] is None:
            return False
        if stamps == self._stamps:
            return True
        # A file written just now may change again within the clock's resolution.
        newest_ns = max(stamp[0] for stamp in stamps if stamp is not None)
        self._stamps = stamps if time.time_ns() - newest_ns > _SETTLED_NS else None
        from kernels.description import parse_variant
        from kernels.source_text import description_of, read_sidecar, read_text
        from kernels.toml_block import KernelDescriptionError

        try:
            text = read_text(self.path)
            sidecar = read_sidecar(self.path) if self._is_own else None
            described = (description_of(text), sidecar)
            if described != self._described or self.error is not None:
                self._described, self.error = described, None
                self.variant = parse_variant(text, self.path, sidecar=sidecar, is_own=self._is_own)
        except KernelDescriptionError as error:
            self.error = error
        return True


def _stamp(path: Path) -> _Stamp:
    """Return what changes when a file is rewritten: time, size and inode; None if there is no
    file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class Ladder(Sequence[Variant]):
    """The variants of a folder's numbered files, sorted by number. Changed files are read again.

    As a sequence it contains the variants of the forward pass; `backward` has those that compute
    gradients, and `of` chooses by a problem. Variants are found by id or name.

    Nothing is read before the first access. A file with an error in its description does not affect
    others: its variant is the last one read without an error, if any, and `errors` has the error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, KernelFile] = {}  # by file name, sorted
        self._named: dict[str, KernelFile] = {}  # by id and by name
        self._second: tuple[tuple[str, str], ...] = ()  # (file, first file with the same number)
        self._lock = threading.Lock()

    def variants(self) -> tuple[Variant, ...]:
        """Return the present variants of the forward pass."""
        return tuple(v for v in self.every() if not v.is_backward)

    @property
    def backward(self) -> tuple[Variant, ...]:
        """Return the present variants of the backward pass."""
        return tuple(v for v in self.every() if v.is_backward)

    def every(self) -> tuple[Variant, ...]:
        """Return all present variants."""
        return tuple(f.variant for f in self._read() if f.variant is not None)

    def of(self, problem: ProblemLike) -> tuple[Variant, ...]:
        """Return the variants of a problem's direction."""
        return self.backward if "backward" in problem.features else self.variants()

    @property
    def errors(self) -> tuple[KernelDescriptionError, ...]:
        """Return the present errors, at most one for each file."""
        from kernels.toml_block import KernelDescriptionError

        mistakes = [f.error for f in self._read() if f.error is not None]
        for name, first in self._second:
            sentence = f"{name[:3]} is {first} already: choose another number."
            mistakes.append(KernelDescriptionError(self._folder / name, 1, sentence))
        return tuple(mistakes)

    def by_id(self, name: str) -> Variant:
        """Return the variant with this id (`v01`) or name (`v01_fa1_baseline`). Raises KeyError."""
        file = self.find(name)
        if file is None or file.variant is None:
            raise KeyError(name)
        return file.variant

    def names(self) -> frozenset[str]:
        """Return the ids and names of all files."""
        return frozenset(name for file in self._read() for name in _names(file))

    def find(self, name: str) -> KernelFile | None:
        """Return the present file with an id or name, without reading other files; None if there is
        none."""
        if not _NAMED.fullmatch(name):
            return None
        with self._lock:
            for is_listed in (True, False):  # a known file needs no listing of the folder
                if not is_listed:
                    self._list()
                found = self._named.get(name)
                if found is not None and found.refresh():
                    return found
        return None

    def _read(self) -> list[KernelFile]:
        with self._lock:
            self._list()
            return [file for file in self._files.values() if file.refresh()]

    def _list(self) -> None:
        names = sorted(p.name for p in self._folder.iterdir() if _NUMBERED.fullmatch(p.name))
        by_number = {name[:3]: name for name in reversed(names)}  # of two files, the first
        self._second = tuple((n, by_number[n[:3]]) for n in names if n != by_number[n[:3]])
        kept = sorted(by_number.values())
        if kept != list(self._files):
            self._files = {n: self._files.get(n) or KernelFile(self._folder / n) for n in kept}
            self._named = {name: file for file in self._files.values() for name in _names(file)}

    def __len__(self) -> int:
        return len(self.variants())

    def __iter__(self) -> Iterator[Variant]:
        return iter(self.variants())

    @overload
    def __getitem__(self, index: int) -> Variant: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Variant, ...]: ...
    def __getitem__(self, index: int | slice) -> Variant | tuple[Variant, ...]:
        return self.variants()[index]


def _names(file: KernelFile) -> tuple[str, str]:
    """Return id and name of the file's variant."""
    return file.path.stem[:3], file.path.stem


LADDER = Ladder(KERNELS_DIR)
by_id = LADDER.by_id


def markdown_table() -> str:
    """Return the README's table of the ladder: one row per variant, no newline at the end."""
    rows = ["| # | variant | the one idea | D | tunables | launches |", "|---|---|---|---|---|---|"]
    for variant in LADDER.every():
        dims = ", ".join(map(str, variant.head_dims))
        tunables = "; ".join(
            f"`{t.name}` {', '.join(map(str, t.values))}" for t in variant.tunables
        )
        rows.append(
            f"| {variant.id.removeprefix('v')} | `{variant.name}` | {variant.idea} | {dims} "
            f"| {tunables} | {len(variant.passes)} |"
        )
    return "\n".join(rows)
