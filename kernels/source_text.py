"""Text of a kernel's source and of its description, which is in the source or beside it. Nothing is
parsed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kernels.toml_block import KernelDescriptionError

SIDECAR_SUFFIX: Final = ".attune.toml"
MAX_SOURCE_BYTES: Final = 1_000_000

_BLOCK_HEAD = re.compile(r"^/\*[ \t]*attune[ \t]*\r?\n", re.MULTILINE)


def read_text(path: Path) -> str:
    """Return a file's text. Raises KernelDescriptionError if it cannot be read or is not UTF-8."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise KernelDescriptionError(path, 1, "it is no regular file.")
            data = file.read(MAX_SOURCE_BYTES + 1)
        if len(data) > MAX_SOURCE_BYTES:
            raise KernelDescriptionError(path, 1, f"it is larger than {MAX_SOURCE_BYTES:,} bytes.")
        return data.decode("utf-8-sig")  # without the byte order mark of some editors
    except UnicodeDecodeError as error:
        raise KernelDescriptionError(path, 1, f"it is not UTF-8 (byte {error.start}).") from None
    except OSError as error:
        sentence = f"it cannot be read: {error.strerror or error}."
        raise KernelDescriptionError(path, 1, sentence) from None


def sidecar_of(path: Path) -> Path:
    """Return the path of the description file beside a source: `fwd.cu` → `fwd.attune.toml`."""
    return path.with_suffix(SIDECAR_SUFFIX)


def read_sidecar(path: Path) -> str | None:
    """Return the text of the description file beside a source; None if there is none."""
    sidecar = sidecar_of(path)
    return read_text(sidecar) if sidecar.is_file() else None


class DescriptionBlock(NamedTuple):
    """One description block of a source."""

    text: str
    toml: str
    line: int  # of the source, of its first line; the TOML begins in the next one


def description_blocks(text: str) -> Iterator[DescriptionBlock]:
    """Yield the blocks in order. Takes linear time for any text."""
    line, counted, position = 1, 0, 0
    while head := _BLOCK_HEAD.search(text, position):
        start, close = head.start(), text.find("*/", head.end())
        if close < 0:
            return
        line, counted = line + text.count("\n", counted, start), start
        position = close + 2
        yield DescriptionBlock(text[start:position], text[head.end() : close], line)


def has_block(text: str) -> bool:
    """True if a source has a description block; those of old snapshots have none."""
    return next(description_blocks(text), None) is not None


def description_of(text: str) -> tuple[str, ...]:
    """Return the parts of a source that its description depends on: title line, blocks, their
    lines.

    Sources with equal parts have equal descriptions.
    """
    blocks = (f"{block.line - 1} {block.text}" for block in description_blocks(text))
    return (text.partition("\n")[0], *blocks)
