"""Own kernels: `.cu` files that a person names, beside those of the ladder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.kernel_file import KernelFile

if TYPE_CHECKING:
    from kernels.toml_block import KernelDescriptionError
    from kernels.variant import Variant


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
        from kernels.toml_block import KernelDescriptionError

        mistakes = [f.error for f in self._read() if f.error is not None]
        mistakes += [KernelDescriptionError(path, 1, why) for path, why in self._clashes.items()]
        return tuple(mistakes)

    def find(self, name: str) -> KernelFile | None:
        """The file of this id."""
        self._read()
        return self._files.get(name)

    def seen(self, name: str) -> KernelFile | None:
        """The same if it was seen before: a look at the places and at its stamps."""
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
                yield from (p for p in sorted(place.glob("*.cu")) if _describes_itself(p))
            elif place.suffix == ".cu":
                yield place


def _describes_itself(path: Path) -> bool:
    from kernels.source_text import has_block, read_text, sidecar_of
    from kernels.toml_block import KernelDescriptionError

    if sidecar_of(path).is_file():
        return True
    try:
        return has_block(read_text(path))
    except KernelDescriptionError:
        return False
