"""Detect changes of a kernel on disk, by content, once the file has settled."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass

from engine.base.errors import CompileError
from engine.model.kernel import variant_sources
from kernels.source_text import read_sidecar
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant


def source_digest(variant: Variant) -> str:
    """Return a hash of the kernel, every header of its project, and the description beside it.

    For an unreadable file, the error message is hashed, so that a fix is a change too.
    """
    try:
        sources = variant_sources(variant)
    except CompileError as error:
        return hashlib.sha256(str(error).encode()).hexdigest()
    digest = hashlib.sha256(sources.text.encode())
    for name, text in sources.headers:
        digest.update(f"\0{name}\0{text}".encode())
    with contextlib.suppress(KernelDescriptionError):
        digest.update(f"\0{read_sidecar(variant.source)}".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SourceWatch:
    """Debounces saves: a change counts when two polls in a row see the same new content.

    Editors write in steps (truncate, write, rename); acting on the first would compile half a file.
    """

    acted_on: str
    last_seen: str

    @classmethod
    def start(cls, digest: str) -> SourceWatch:
        """Return the first state, with the content as it is on disk."""
        return cls(digest, digest)

    def poll(self, digest: str) -> tuple[SourceWatch, bool]:
        """Return the next state, and whether a settled change is to be acted on."""
        settled = digest == self.last_seen and digest != self.acted_on
        return SourceWatch(digest if settled else self.acted_on, digest), settled
