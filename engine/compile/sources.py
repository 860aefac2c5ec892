"""A kernel's source and the project headers it includes, read once and hashed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import CompileError
from engine.records import files
from engine.text import MAX_SOURCE
from kernels.description import without_block

_INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sources:
    """The texts that are compiled. What is hashed is what the compiler gets, whatever happens to
    the files in between."""

    name: str  # the file's name, as errors show it
    text: str
    headers: tuple[tuple[str, str], ...]  # (name as included, text), sorted by name

    @property
    def code(self) -> str:
        """What is compiled: an edit of the description alone compiles nothing again."""
        return without_block(self.text)

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_sources(source: Path) -> Sources:
    """Read `source` and, transitively, the headers beside it that it includes.

    An include that names no file of the kernel's folder is the toolkit's and is left to the
    compiler.

    Raises:
        CompileError: a file cannot be read or is not UTF-8.
    """
    text = read_source(source)
    headers: dict[str, str] = {}
    pending = _INCLUDE.findall(text)
    while pending:
        name = pending.pop()
        path = source.parent / name
        if name in headers or not path.is_file():
            continue
        headers[name] = read_source(path)
        pending += _INCLUDE.findall(headers[name])
    return Sources(source.name, text, tuple(sorted(headers.items())))


def read_source(path: Path) -> str:
    """One file's text.

    Raises:
        CompileError: it is no regular file, too large, unreadable or not UTF-8.
    """
    try:
        data = files.read(path, MAX_SOURCE + 1)
        if len(data) > MAX_SOURCE:
            raise CompileError(f"{path.name} is larger than the {MAX_SOURCE:,} bytes of a source.")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CompileError(
            f"{path.name} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error
    except OSError as error:
        raise CompileError(f"{path.name} cannot be read: {error.strerror or error}.") from error
