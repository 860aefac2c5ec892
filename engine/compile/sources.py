"""A kernel's source and the project headers it includes, read once and hashed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.compile.host_code import without_host_code
from engine.errors import CompileError
from engine.records import files
from engine.text import MAX_SOURCE
from kernels.description import without_block
from kernels.variant import Variant

_INCLUDE = re.compile(
    r"""^(?P<before>[ \t]*#[ \t]*include[ \t]*)(?P<open>[<"])(?P<name>[^>"\n]+)[>"]""", re.MULTILINE
)
_MAX_HEADERS = 500


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a kernel."""

    name: str  # a header's is its path from the kernel's folder, or from an include folder
    text: str  # as it is on disk
    # What is compiled: no description, no host code, headers of the project included by their names
    # here. Lines keep their numbers.
    code: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The texts that are compiled. What is hashed is what the compiler gets, whatever happens to
    the files in between."""

    main: SourceFile
    included: tuple[SourceFile, ...]  # project headers, sorted by name
    foreign: tuple[str, ...]  # other headers, as included, sorted: the toolkit's, the standard's

    @property
    def name(self) -> str:
        """The kernel's file name, as errors show it."""
        return self.main.name

    @property
    def text(self) -> str:
        return self.main.text

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of the project headers."""
        return tuple((file.name, file.text) for file in self.included)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All of them, the kernel first."""
        return (self.main, *self.included)

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_sources(source: Path, include_folders: Sequence[Path] = ()) -> Sources:
    """Read `source` and, transitively, the headers of the project that it includes.

    A header is looked for beside the file that includes it, beside the kernel, then in the include
    folders. One that is in none of them is the toolkit's or the standard library's.

    Raises:
        CompileError: a file cannot be read or is not UTF-8, or there are more than 500 headers.
    """
    return _Reader(source, include_folders).sources()


def included_files(source: Path, include_folders: Sequence[Path] = ()) -> tuple[Path, ...]:
    """`source` and the project's headers that it includes. Raises as `read_sources`."""
    reader = _Reader(source, include_folders)
    reader.sources()
    return reader.paths


def variant_sources(variant: Variant) -> Sources:
    """The texts of a variant of now. Raises CompileError as `read_sources`."""
    return read_sources(variant.source, variant.include_folders)


class _Reader:
    def __init__(self, source: Path, include_folders: Sequence[Path]) -> None:
        self._source = source
        self._folders = (source.parent, *include_folders)
        self._names: dict[Path, str] = {}
        self._texts: dict[Path, str] = {}
        self._foreign: set[str] = set()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were read."""
        return tuple(self._names)

    def sources(self) -> Sources:
        self._names[self._source] = self._source.name
        pending = [self._source]
        while pending:
            path = pending.pop()
            self._texts[path] = read_source(path)
            for match in _INCLUDE.finditer(self._texts[path]):
                header = self._find(match["name"], path)
                if header is None:
                    self._foreign.add(match["name"])
                elif header not in self._names:
                    self._names[header] = self._name(header)
                    pending.append(header)
            if len(self._names) > _MAX_HEADERS:
                raise CompileError(
                    f"{self._source.name} includes more than {_MAX_HEADERS} files: name fewer "
                    "include folders, or smaller ones."
                )
        main, *others = (self._file(path) for path in self._names)
        included = tuple(sorted(others, key=lambda file: file.name))
        return Sources(main, included, tuple(sorted(self._foreign)))

    def _find(self, name: str, includer: Path) -> Path | None:
        for folder in (includer.parent, *self._folders):
            path = Path(os.path.normpath(folder / name))
            if path.is_file():
                return path
        return None

    def _name(self, path: Path) -> str:
        folder = next((f for f in self._folders if path.is_relative_to(f)), path.parent)
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        taken = set(self._names.values())
        return name if name not in taken else f"{len(taken)}_{name.replace('/', '_')}"

    def _file(self, path: Path) -> SourceFile:
        def rename(match: re.Match[str]) -> str:
            header = self._find(match["name"], path)
            name = self._names.get(header, match["name"]) if header else match["name"]
            if name == match["name"]:
                return match[0]
            return f'{match["before"]}"{name}"'

        text = self._texts[path]
        code = _INCLUDE.sub(rename, without_host_code(without_block(text)))
        return SourceFile(self._names[path], text, code)


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
