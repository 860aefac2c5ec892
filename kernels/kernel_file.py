"""One `.cu` file and its description, read again when either has changed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kernels.toml_block import KernelDescriptionError
    from kernels.variant import Variant

_SETTLED_NS = 1_000_000_000
_Stamp: TypeAlias = "tuple[int, int, int] | None"


class KernelFile:
    """Its variant as last read without a mistake, and the mistake of now.

    Args:
        is_own: not of the ladder: described in the file or beside it, its id the file's name.
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
        self._stamps: tuple[_Stamp, _Stamp] | None = None  # None: to be read again
        self._described: tuple[object, ...] | None = None

    def refresh(self) -> bool:
        """Read the file again if it has changed; False if it is gone.

        An equal description keeps the variant object, so that it may serve as a key.
        """
        stamps = (_stamp(self.path), _stamp(self._sidecar) if self._sidecar is not None else None)
        if stamps[0] is None:
            return False
        if stamps == self._stamps:
            return True
        # A file that was written just now may change again within the clock's resolution.
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
    """What differs once a file was written anew; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
