"""A kernel's source in the form that is compiled: headers found, host code left out.

Headers of the C and C++ standard libraries are replaced by `headers/standard.h`, with the parts
that device code uses, and the driver's by `headers/driver.h`; unused ones, and those that only host
code uses, become empty. Names that nvcc provides without an include are in `headers/implicit.h`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal, NamedTuple, TypeAlias

from engine.base import files
from engine.base.errors import CompileError
from engine.base.files import MAX_SOURCE
from engine.cuda_source.host_code import COMMENT_OR_LITERAL, without_host_code

CppStandard: TypeAlias = Literal["c++17", "c++20"]

_FOLDER: Final = Path(__file__).resolve().parent / "headers"
_NAME: Final = "attune/standard.h"
IMPLICIT: Final = "attune/implicit.h"
_DRIVER: Final = "cuda.h"
_TYPEDEFS: Final = "cudaTypedefs.h"  # types of the driver's functions, which only host code calls
LIMITED_GROUPS: Final = "_CG_LIMIT_INCLUDED_DEPENDENCIES"  # a macro of the toolkit
_TARGET: Final = "nv/target"  # of libcu++, which cooperative groups include

# Headers whose contents device code may use.
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
_HOST_HEADER = re.compile(
    r"(?:torch|ATen|c10|pybind11|gtest|gmock|nvtx3|benchmark|Eigen)/"
    r"|(?:cublas|cudnn|cufft|curand\.h|cusparse|cusolver|nccl|nvToolsExt|cuda_profiler_api|helper_)"
    r"[\w/]*\.h|Python\.h|curand\.h"
)


@dataclass(frozen=True, slots=True)
class _Library:
    """Headers of a library that device code may use and that kernels do not bring."""

    name: str
    headers: re.Pattern[str]
    use: re.Pattern[str]
    instead: str

    def first_use(self, sources: Sources) -> str | None:
        """Return `file.cu(line)` of the first use; None if it is only included."""
        texts = [code_only(file.code) for file in sources.files]
        used = frozenset(word for text in texts for word in _WORD.findall(_DEFINE.sub("", text)))
        for file, text in zip(sources.files, texts, strict=True):
            code = _without_macros(text, used)
            if (use := self.use.search(code)) is not None:
                return f"{file.name}({code.count(chr(10), 0, use.start()) + 1})"
        return None


_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)(?:\\\n|[^\n])*", re.MULTILINE)


_WORD = re.compile(r"\w+")


def _without_macros(code: str, but: Container[str]) -> str:
    """Return the code without macros that only the left-out host code uses."""

    def kept(match: re.Match[str]) -> str:
        return match[0] if match["name"] in but else "\n" * match[0].count("\n")

    return _DEFINE.sub(kept, code)


_REMEDY = "name the folder of its headers by `include` in the description"


def _namespace(names: str) -> str:
    """Return a pattern for uses of a namespace."""
    return rf"\b(?:{names})\s*::|\bnamespace\s+(?:\w+\s*=\s*)?(?:{names})\s*;"


_LIBRARIES: Final = tuple(
    _Library(name, re.compile(headers), re.compile(use), instead)
    for name, headers, use, instead in (
        ("CUB", r"cub/", _namespace("cub"), "write it with warp shuffles (__shfl_xor_sync)"),
        ("Thrust", r"thrust/", _namespace("thrust"), "use plain pointers in device code"),
        ("CUTLASS and CuTe", r"(?:cute|cutlass)/", _namespace("cute|cutlass"),
         f"{_REMEDY}, or write the kernel without them, as the CPU backend executes few of them"),
        ("cuRAND", r"curand_\w+\.h", r"\bcurand\w*",
         "leave dropout out, as the reference has none"),
        ("libcu++", r"cuda/", _namespace("cuda"), "inline PTX (mbarrier, cp.async), "
         "<cuda_pipeline.h> and cooperative groups are executed: use those, or name a folder that "
         "has it by `include` (a CUDA toolkit's, or CuPy's _cccl) for its machine code alone"),
    )
)  # fmt: skip


def _library_of(name: str) -> _Library | None:
    return next((library for library in _LIBRARIES if library.headers.match(name)), None)


# Headers of cuda_runtime.h, which nvcc includes implicitly.
_IMPLICIT_NAME = re.compile(
    r"\b(?:INFINITY|NAN|HUGE_VALF?|M_(?:E|LOG2E|LOG10E|LN2|LN10|PI|PI_2|PI_4|1_PI|2_PI|2_SQRTPI"
    r"|SQRT2|SQRT1_2)|U?(?:CHAR|SHRT|INT|LONG|LLONG)_M(?:AX|IN)|CHAR_BIT|RAND_MAX"
    r"|u?int(?:8|16|32|64)_t|u?intptr_t|uint|ulong|ushort)\b"
)
_OWN_NAME = re.compile(
    r"(?:#[ \t]*define[ \t]+|\busing\s+)(\w+)|\btypedef\b(?P<typedef>[^;]*)(?:;|\Z)"
)
_NO_CODE = re.compile(
    COMMENT_OR_LITERAL + r"|^[ \t]*#[ \t]*include[^\n]*", re.DOTALL | re.MULTILINE
)


def is_left_out(name: str, sources: Sources) -> bool:
    """True if a build leaves out this header, because another replaces it or nothing uses it."""
    return name in FOR_DEVICE or _is_empty(name, sources)


_PYTORCH = re.compile(r"(?:torch|ATen|c10)/")


def implied(names: Iterable[str]) -> str:
    """Return replacements for the parts of these headers that device code uses; empty if none."""
    return _text("pytorch.h") if any(map(_PYTORCH.match, names)) else ""


def _is_empty(name: str, sources: Sources) -> bool:
    if name in _HOST_STANDARD or name == _TYPEDEFS or _HOST_HEADER.match(name):
        return True
    library = _library_of(name)
    return library is not None and library.first_use(sources) is None


def includes_library(sources: Sources) -> bool:
    """Whether a source includes headers that neither the project nor `cuda_runtime.h` has."""
    return _uses_groups(sources) or any(_library_of(name) is not None for name in sources.foreign)


def require_libraries(sources: Sources, folders: Sequence[Path]) -> None:
    """Check that device code uses no header library that is missing from these folders.

    Raises:
        CompileError: `file.cu(line)`, the library and what to do.
    """
    for name in sources.foreign:
        library = _library_of(name)
        if library is None or _is_in(folders, name):
            continue
        if (use := library.first_use(sources)) is not None:
            raise CompileError(
                f"{use}: this uses {library.name} (<{name}>), which Attune does not have: "
                f"{library.instead}."
            )


def uses_implicit(sources: Sources) -> bool:
    """True if a source uses names that nvcc, but not NVRTC, provides without an include."""
    names = [_implicit_names(file.code) for file in sources.files]
    used = {name for of_file, _ in names for name in of_file}
    return bool(used.difference(*(own for _, own in names)))


# Every lookup in the cache needs it for the same texts.
@functools.lru_cache(maxsize=128)
def _implicit_names(code: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return (implicit names that a file uses, those of them that it defines itself)."""
    text = code_only(code)
    used = frozenset(match[0] for match in _IMPLICIT_NAME.finditer(text))
    own = (match[1] or _last_word(match["typedef"]) for match in _OWN_NAME.finditer(text))
    return used, frozenset(own)


def _last_word(text: str) -> str:
    words: list[str] = _WORD.findall(text[-200:])
    return words[-1] if words else ""


def replacement_headers(sources: Sources, folders: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of the headers that replace others for NVRTC, and of their includes."""
    texts: dict[str, str] = {}
    for name in sources.foreign:
        if _library_of(name) is not None and _is_in(folders, name):
            continue
        if name in FOR_DEVICE:
            texts[name] = f'#include "{_NAME}"\n'
        elif name == _DRIVER:
            texts[name] = _text("driver.h")
        elif _is_empty(name, sources):
            texts[name] = implied([name])
    if lacks_libcu(sources, folders):
        texts[_TARGET] = ""  # its macros are built into NVRTC
    if not texts and not uses_implicit(sources):
        return ()
    with_libcu = any(name.startswith("cuda/") and _is_in(folders, name) for name in sources.foreign)
    before = "#define ATTUNE_LIBCUDACXX\n" if with_libcu else ""
    own = ((_NAME, _text("standard.h")), (IMPLICIT, before + _text("implicit.h")))
    return (*own, *sorted(texts.items()))


def lacks_libcu(sources: Sources, folders: Sequence[Path]) -> bool:
    """True if cooperative groups must not include libcu++ (`LIMITED_GROUPS`)."""
    return _uses_groups(sources) and not _is_in(folders, _TARGET)


def _uses_groups(sources: Sources) -> bool:
    return any(name.startswith("cooperative_groups") for name in sources.foreign)


def _is_in(folders: Sequence[Path], name: str) -> bool:
    return any((folder / name).is_file() for folder in folders)


@functools.lru_cache(maxsize=128)
def code_only(text: str) -> str:
    """Return the text without comments, literals and includes, with the same lines."""
    return _NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


@functools.cache
def _text(file: str) -> str:
    return (_FOLDER / file).read_text(encoding="utf-8")


# A kernel's source and the project headers it includes, read once and hashed.


_INCLUDE = re.compile(
    r"""^(?P<before>[ \t]*#[ \t]*include[ \t]*)(?P<open>[<"])(?P<name>[^>"\n]+)[>"]""", re.MULTILINE
)
_MAX_HEADERS = 500
_MAX_KEPT = 256  # kernels whose texts are cached
_SETTLED_NS = 1_000_000_000

_Stamp: TypeAlias = "tuple[int, ...] | None"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a kernel."""

    name: str  # for headers, the path from the kernel's folder or an include folder
    text: str  # as it is on disk
    # The compiled text: no descriptions, no host code, project headers included by their `name`.
    # Line numbers are kept.
    code: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The texts to compile. The hash is that of the compiled text, even if files change
    meanwhile."""

    main: SourceFile
    included: tuple[SourceFile, ...]  # project headers, sorted by name
    foreign: tuple[str, ...]  # other headers, as included, sorted: the toolkit's, the standard's

    @property
    def name(self) -> str:
        """Return the kernel's file name, as in errors."""
        return self.main.name

    @property
    def text(self) -> str:
        return self.main.text

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return (name, text) of the project headers."""
        return tuple((file.name, file.text) for file in self.included)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Return all files, the kernel first."""
        return (self.main, *self.included)

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_sources(source: Path, include_folders: Sequence[Path] = ()) -> Sources:
    """Read `source` and, transitively, the headers of the project that it includes.

    A header is searched in the folder of the including file, of the kernel, then in the include
    folders. Others belong to the toolkit or the standard library.

    Raises:
        CompileError: a file cannot be read or is not UTF-8, or there are more than 500 headers.
    """
    key = (source, tuple(include_folders))
    kept = _READ.get(key)
    if kept is not None and all(_stamp(path) == stamp for path, stamp in kept.stamps.items()):
        return kept.sources
    reader = _Reader(source, include_folders)
    begin_ns = time.time_ns()
    reader.follow()
    sources = reader.sources()
    stamps = reader.stamps()
    # A file written just now may change again within the clock's resolution.
    if all(stamp is None or stamp[0] < begin_ns - _SETTLED_NS for stamp in stamps.values()):
        if len(_READ) >= _MAX_KEPT:
            _READ.clear()
        _READ[key] = _Read(stamps, sources)
    return sources


class _Read(NamedTuple):
    """Cached sources, and the files that they depend on."""

    stamps: dict[Path, _Stamp]  # of each searched path; None: no file there
    sources: Sources


_READ: dict[tuple[Path, tuple[Path, ...]], _Read] = {}


def _stamp(path: Path) -> _Stamp:
    """Return times of change in ns, the later first, size, inode and device; None if no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    times = sorted((found.st_mtime_ns, found.st_ctime_ns), reverse=True)
    return *times, found.st_size, found.st_ino, found.st_dev


def included_files(source: Path, include_folders: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return `source` and its project headers. Raises as `read_sources`."""
    reader = _Reader(source, include_folders)
    reader.follow()
    return tuple(reader.names)


class OutsideFolder(CompileError):
    """An include that names a file outside the kernel's folder."""


# Directives that name a file, in all spellings: digraphs, trigraphs, comments between the words.
_HASH = re.compile(r"\?\?=|%:|#")
_BLANKS = re.compile(r"[ \t\v\f]+")
_INDENT = re.compile(r"[^\S\n]+")
_NAMES_FILE = re.compile(r"(?:include_next|include|import|embed)\b")
_INCLUDED = re.compile(r"\b__has_(?:include|include_next|embed)\b[ \t]*\([ \t]*(?P<name>[^\n)]*)")
_LITERAL = re.compile(r"""[<"](?P<name>[^>"\n]+)[>"]""")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")


def files_inside(
    root: Path, source: Path, include_folders: Sequence[Path] = ()
) -> dict[Path, tuple[str, str]]:
    """Return (name, text) of `included_files`, all of which must be within `root`.

    So must every file that the compiler could open, because its messages would show their text:
    files named by macros, by paths out of the folder, or in the current folder.

    Raises:
        OutsideFolder: an include names a file elsewhere, or not literally.
        CompileError: as `read_sources`.
    """
    reader = _Reader(source, include_folders)
    reader.follow()
    top = root.resolve()
    for path, text in reader.texts.items():
        for name in _named_files(path.name, text):
            place, found = PurePosixPath(name), reader.find(name, path)
            if found is not None and not found.resolve().is_relative_to(top):
                raise OutsideFolder(f"{path.name} names {found}, which lies outside of {root}.")
            if found is None and (place.is_absolute() or ".." in place.parts):
                raise OutsideFolder(f"{path.name} names {name}, which is no file of {root}.")
            if found is None and Path(name).is_file():  # in the current folder
                raise OutsideFolder(f"{path.name} names {name}, which is not beside it.")
    return {path: (name, reader.texts[path]) for path, name in reader.names.items()}


def include_from(
    folder: Path, source: Path, include_folders: Sequence[Path] = ()
) -> tuple[str, str] | None:
    """Return (file, name) of an include that is searched in `folder` before it is found elsewhere.

    It is for a folder that does not exist, because the compiler might have found a file there.

    Raises:
        CompileError: as `read_sources`.
    """
    reader = _Reader(source, include_folders)
    reader.follow()
    for path, text in reader.texts.items():
        for match in _INCLUDE.finditer(text):
            for place in reader.places(match["name"], path):
                if place.is_relative_to(folder):
                    return path.name, match["name"]
                if place.is_file():
                    break
    return None


def _named_files(file: str, text: str) -> Iterator[str]:
    """Return the files that a source names. Raises OutsideFolder for a name that is not literal."""
    lines = re.sub(r"\r(?!\n)", "\n", text)
    splices = iter([match.span() for match in _SPLICE.finditer(lines)])
    whole = _SPLICE.sub("", lines)
    begin, end = next(splices, (len(lines), 0))
    gone = 0  # characters removed by line splices so far
    for start in _directives(whole):
        while begin <= start + gone:
            gone += end - begin
            begin, end = next(splices, (len(lines), 0))
        at = start + gone
        plain = _INCLUDE.match(text, text.rfind("\n", 0, at) + 1)
        if plain is None or plain.end() < at:
            where = text.count("\n", 0, at) + 1
            raise OutsideFolder(
                f"{file}({where}): an include whose file is not spelled out: write it as "
                '#include "name".'
            )
        yield plain["name"]
    for match in _INCLUDED.finditer(whole):
        literal = _LITERAL.match(match["name"])
        if literal is None:
            raise OutsideFolder(f"{file}: {match[0][:60]} asks for a file that is not spelled out.")
        yield literal["name"]


def _directives(text: str) -> Iterator[int]:
    """Return the positions of directives that name a file, first in their lines after comments."""
    code_at: dict[int, int] = {}  # code after the comments that begin at these positions
    line_end = first = closed = close = -1
    for match in _HASH.finditer(text):
        start, at = match.span()
        if start > line_end:
            line = text.rfind("\n", 0, start) + 1
            line_end = _found(text, "\n", start)
            first = _end(_INDENT, text, line)
            if closed < line:
                closed = _found(text, "*/", line)
        passed = []
        while text.startswith("/*", at := _end(_BLANKS, text, at)) and at not in code_at:
            passed.append(at)
            if close < at + 2:
                close = _found(text, "*/", at + 2)
            at = min(close + 2, len(text))
        at = code_at.get(at, at)
        code_at.update((place, at) for place in passed)
        begins_line = start <= first or closed + 2 <= start
        if begins_line and _NAMES_FILE.match(text, at):
            yield start


def _end(blanks: re.Pattern[str], text: str, begin: int) -> int:
    match = blanks.match(text, begin)
    return match.end() if match else begin


def _found(text: str, what: str, begin: int) -> int:
    """Return its position from `begin` on; the end of the text if not found."""
    at = text.find(what, begin)
    return at if at >= 0 else len(text)


_DESCRIPTION = re.compile(r"^/\*[ \t]*attune[ \t]*\r?\n.*?\*/", re.DOTALL | re.MULTILINE)


def without_descriptions(text: str) -> str:
    """Return the text with every comment whose first line is `/* attune` left empty.

    Such a comment describes a kernel to Attune's tools: an edit of it leaves the compiled text and
    its hash as they are. Line numbers are kept. Takes linear time for any text.
    """
    closed, close, rest = text.rpartition("*/")
    return _DESCRIPTION.sub(lambda found: "\n" * found[0].count("\n"), closed + close) + rest


class _Reader:
    def __init__(self, source: Path, include_folders: Sequence[Path]) -> None:
        self._source = source
        self._folders = (source.parent, *include_folders)
        self._found: dict[tuple[Path, str], Path | None] = {}  # by the includer's folder
        self.names: dict[Path, str] = {}  # names of the files, the source first
        self.texts: dict[Path, str] = {}
        self._foreign: set[str] = set()
        self._stamps = {source: _stamp(source)}  # taken before a file is read

    def follow(self) -> None:
        """Read the source and all its headers."""
        self.names[self._source] = self._source.name
        pending = [self._source]
        while pending:
            path = pending.pop()
            self.texts[path] = read_source(path)
            for match in _INCLUDE.finditer(self.texts[path]):
                header = self.find(match["name"], path)
                if header is None:
                    self._foreign.add(match["name"])
                elif header not in self.names:
                    self.names[header] = self._name(header)
                    pending.append(header)
            if len(self.names) > _MAX_HEADERS:
                raise CompileError(
                    f"{self._source.name} includes more than {_MAX_HEADERS} files: name fewer "
                    "include folders, or smaller ones."
                )

    def sources(self) -> Sources:
        """Return what `follow` read, in the form that is compiled."""
        main, *others = (self._file(path) for path in self.names)
        included = tuple(sorted(others, key=lambda file: file.name))
        return Sources(main, included, tuple(sorted(self._foreign)))

    def stamps(self) -> dict[Path, _Stamp]:
        """Return stamps of the source and of every path where a header was searched."""
        return self._stamps

    def find(self, name: str, includer: Path) -> Path | None:
        key = (includer.parent, name)
        if key not in self._found:
            places = self.places(name, includer)
            self._found[key] = next((path for path in places if self._is_file(path)), None)
        return self._found[key]

    def _is_file(self, path: Path) -> bool:
        self._stamps[path] = _stamp(path)
        return path.is_file()

    def places(self, name: str, includer: Path) -> Iterator[Path]:
        """Return the paths where a file is searched, in order."""
        for folder in dict.fromkeys((includer.parent, *self._folders)):
            yield Path(os.path.normpath(folder / name))

    def _name(self, path: Path) -> str:
        folder = next((f for f in self._folders if path.is_relative_to(f)), path.parent)
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        taken = set(self.names.values())
        return name if name not in taken else f"{len(taken)}_{name.replace('/', '_')}"

    def _file(self, path: Path) -> SourceFile:
        def rename(match: re.Match[str]) -> str:
            header = self.find(match["name"], path)
            name = self.names.get(header, match["name"]) if header else match["name"]
            if name == match["name"]:
                return match[0]
            return f'{match["before"]}"{name}"'

        text = self.texts[path]
        code = _INCLUDE.sub(rename, without_host_code(without_descriptions(text)))
        return SourceFile(self.names[path], text, code)


def read_source(path: Path) -> str:
    """Return a file's text.

    Raises:
        CompileError: it is not a regular file, too large, unreadable or not UTF-8.
    """
    try:
        data = files.read(path, MAX_SOURCE + 1)
        if len(data) > MAX_SOURCE:
            raise CompileError(
                f"{path.name} is larger than the {MAX_SOURCE:,} bytes of a source.",
                code="source_too_large",
            )
        return data.decode("utf-8-sig")  # NVRTC rejects the byte order mark of some editors
    except UnicodeDecodeError as error:
        raise CompileError(
            f"{path.name} is not UTF-8 text (byte {error.start}): save it as UTF-8.",
            code="source_not_utf8",
        ) from error
    except OSError as error:
        raise CompileError(
            f"{path.name} cannot be read: {error.strerror or error}.", code="source_unreadable"
        ) from error
