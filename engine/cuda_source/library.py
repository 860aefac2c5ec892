"""NVRTC's functions of any version through ctypes; `nvrtc_process` imports it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class NvrtcError(RuntimeError):
    """A call of NVRTC failed."""


class Compile(NamedTuple):
    """The input of one run of NVRTC."""

    library: str  # path of libnvrtc
    source: str
    name: str  # the source's name in errors
    headers: tuple[tuple[str, str], ...]  # name as included, text
    entries: tuple[str, ...]  # name expressions
    options: tuple[str, ...]
    output: str  # "CUBIN" or "PTX"


class Compiled(NamedTuple):
    """The result of one run of NVRTC."""

    code: bytes | None  # None if it does not compile; the log has the errors
    symbols: dict[str, str]  # by entry
    log: str


class NvrtcLibrary:
    """One NVRTC library.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        # Loaded first, because NVRTC finds it by its name only if it is already loaded.
        for needed in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(needed))
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """Return (major, minor). Raises NvrtcError."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def archs(self) -> tuple[int, ...]:
        """Return compute capabilities without the dot, ascending. Raises NvrtcError."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return tuple(sorted(archs))

    def compile(self, given: Compile) -> Compiled:
        """Compile one source. Raises NvrtcError if there is not even a log."""
        with self._program(given) as program:
            code: bytes | None = None
            symbols: dict[str, str] = {}
            try:
                for entry in given.entries:
                    self._call("nvrtcAddNameExpression", program, entry.encode())
                options = [option.encode() for option in given.options]
                self._call("nvrtcCompileProgram", program, len(options), _strings(options))
                symbols = {entry: self._symbol(program, entry) for entry in given.entries}
                code = self._bytes(given.output, program)
            except NvrtcError:
                symbols = {}
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            # NVRTC joins the logs of its stages with NUL characters.
            return Compiled(code, symbols, log.replace("\0", "\n").strip())

    @contextlib.contextmanager
    def _program(self, given: Compile) -> Iterator[ctypes.c_void_p]:
        program = ctypes.c_void_p()
        texts = [text.encode() for _, text in given.headers]
        names = [name.encode() for name, _ in given.headers]
        self._call(
            "nvrtcCreateProgram",
            *(ctypes.byref(program), given.source.encode(), given.name.encode()),
            *(len(texts), _strings(texts), _strings(names)),
        )
        try:
            yield program
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _symbol(self, program: ctypes.c_void_p, entry: str) -> str:
        lowered = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", program, entry.encode(), ctypes.byref(lowered))
        return (lowered.value or b"").decode()

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, content)
        return content.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NvrtcError(self._library.nvrtcGetErrorString(code).decode(errors="replace"))


def _strings(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*texts)
