"""Headers of the host's libraries in a kernel's source: NVRTC has none of them.

Those of the C and C++ standard libraries become `headers/standard.h`, which holds what device code
uses of them, the driver's `headers/driver.h`; those of libraries that only host code uses become
empty.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from engine.base import files
from engine.base.errors import CompileError
from engine.base.text import MAX_SOURCE
from engine.cuda_source.host_code import without_host_code
from kernels.description import without_block

_FOLDER: Final = Path(__file__).resolve().parent / "headers"
_NAME: Final = "attune/standard.h"
_DRIVER: Final = "cuda.h"
_TYPEDEFS: Final = "cudaTypedefs.h"  # types of the driver's functions, which only hosts call

# Those whose contents device code may use.
FOR_DEVICE: Final = frozenset(
    f"{name}{ending}"
    for name, ending in (
        *((n, ".h") for n in ("assert", "float", "limits", "math", "stddef", "stdint")),
        *((n, ".h") for n in ("stdio", "stdlib", "string", "inttypes", "stdbool")),
        *((f"c{n}", "") for n in ("assert", "float", "limits", "math", "stddef", "stdint")),
        *((f"c{n}", "") for n in ("stdio", "stdlib", "string", "inttypes")),
        *((n, "") for n in ("algorithm", "limits", "type_traits", "utility", "numeric")),
    )
)
_HOST_STANDARD = frozenset(
    "array atomic bitset chrono complex condition_variable deque exception execution filesystem "
    "fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator list "
    "locale map memory memory_resource mutex new numbers optional ostream queue random ratio regex "
    "set span sstream stack stdexcept streambuf string string_view system_error thread tuple "
    "typeindex typeinfo unordered_map unordered_set valarray variant vector ctime cerrno errno.h "
    "time.h unistd.h getopt.h sys/time.h omp.h".split()
)
_HOST_LIBRARY = re.compile(
    r"(?:torch|ATen|c10|pybind11|gtest|gmock|thrust|cub_host|nvtx3|benchmark|Eigen)/"
    r"|(?:cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvToolsExt|cuda_profiler_api|helper_)"
    r"[\w/]*\.h|Python\.h"
)


def is_for_host(name: str) -> bool:
    """Whether only host code uses what this header declares."""
    return name in _HOST_STANDARD or name == _TYPEDEFS or _HOST_LIBRARY.match(name) is not None


def is_known(name: str) -> bool:
    """Whether this module knows what to put in a header's place."""
    return name in FOR_DEVICE or is_for_host(name)


def stand_ins(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(name, text) of what NVRTC is given in place of these headers and what they lead to."""
    names = tuple(names)
    wanted = {name for name in names if is_known(name) or name == _DRIVER}
    if not wanted:
        return ()
    texts = {name: "" if is_for_host(name) else f'#include "{_NAME}"\n' for name in wanted}
    if _DRIVER in wanted:
        texts[_DRIVER] = _text("driver.h")
    with_libcudacxx = any(name.startswith("cuda/") for name in names)
    before = "#define ATTUNE_LIBCUDACXX\n" if with_libcudacxx else ""
    return ((_NAME, before + _text("standard.h")), *sorted(texts.items()))


@functools.cache
def _text(file: str) -> str:
    return (_FOLDER / file).read_text(encoding="utf-8")


# A kernel's source and the project headers it includes, read once and hashed.


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
