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
        self._stamps: tuple[_Stamp, _Stamp] | None = None  # None: to be read again
        self._described: tuple[object, ...] | None = None

    def refresh(self) -> bool:
        """Read the file again if it has changed; False if it is gone.

        An equal description keeps the variant object, so that it may serve as a key.
        """
        stamps, is_settled = self._look()
        if stamps[0] is None:
            return False
        if stamps == self._stamps:
            return True
        # A file that was written just now may change again within the clock's resolution.
        self._stamps = stamps if is_settled else None
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

    def _look(self) -> tuple[tuple[_Stamp, _Stamp], bool]:
        """The stamps of the source and of the file beside it, and whether both are old enough."""
        paths = [self.path]
        if self._is_own:
            from kernels.source_text import sidecar_of

            paths.append(sidecar_of(self.path))
        stamps: list[_Stamp] = []
        is_settled = True
        for path in paths:
            try:
                stat = path.stat()
            except OSError:
                stamps.append(None)
                continue
            stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            is_settled &= time.time_ns() - stat.st_mtime_ns > _SETTLED_NS
        return (stamps[0], stamps[1] if len(stamps) > 1 else None), is_settled
