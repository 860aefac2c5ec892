"""ctypes mirror of the runtime library. Used in the child process only; standard library only."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

MAX_ARGUMENTS = 64
MAX_MARKS = 16384  # of native/host_runtime.h
SCHEDULES = {"in_order": 0, "random": 1, "reverse": 2}


class ReportedPlace(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char * 128),
        ("line", ctypes.c_uint32),
        ("program_counter", ctypes.c_uint64),
    )


class Report(ctypes.Structure):
    _fields_ = (
        ("failed", ctypes.c_int32),
        ("has_thread", ctypes.c_int32),
        ("cta", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("place", ReportedPlace),
        ("other_place", ReportedPlace),
        ("kind", ctypes.c_char * 64),
        ("message", ctypes.c_char * 1600),
    )


class Touched(ctypes.Structure):
    _fields_ = (("buffer", ctypes.c_int32), ("offset", ctypes.c_int64))


class LaunchSettings(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_smem_bytes", ctypes.c_uint32),
        ("workers", ctypes.c_int32),
        ("schedule", ctypes.c_int32),
        ("check", ctypes.c_int32),
        ("finite_locals", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("ctas", ctypes.POINTER(ctypes.c_uint64)),
        ("num_ctas", ctypes.c_uint64),
        ("touched", ctypes.POINTER(Touched)),
    )


class Parameter(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class Runtime:
    """The runtime library. Load it before any kernel library: those resolve against it."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.allocate = library.coh_allocate
        self.allocate.restype = ctypes.c_void_p
        self.allocate.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t,
            ctypes.c_int, ctypes.c_int,
        ]  # fmt: skip
        self.allocate_sparse = library.coh_allocate_sparse
        self.allocate_sparse.restype = ctypes.c_void_p
        self.allocate_sparse.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
            ctypes.c_int,
        ]  # fmt: skip
        self.open = library.coh_open
        self.open.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
        self.close_sparse = library.coh_close_sparse
        self.free_all = library.coh_free_all
        self.start_run = library.coh_start_run
        self.start_run.argtypes = [ctypes.c_int]
        self.launch = library.coh_launch
        self.interrupt = library.coh_interrupt


class KernelLibrary:
    """One kernel source's library."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.module = ctypes.byref(self._symbol("coh_module"))

    @property
    def source_map(self) -> dict[str, Any] | None:
        """What `instrument` wrote; None in the fast build."""
        try:
            text = ctypes.string_at(ctypes.addressof(self._symbol("coh_source_map")))
        except ValueError:
            return None
        source_map: dict[str, Any] = json.loads(text)
        return source_map

    def marks(self) -> list[int]:
        """Of the statements that ran since `clear_marks`."""
        return [number for number, ran in enumerate(bytes(self._ran())) if ran]

    def clear_marks(self) -> None:
        ctypes.memset(self._ran(), 0, MAX_MARKS)

    def _ran(self) -> ctypes.Array[ctypes.c_char]:
        address = self._library["coh_ran"]
        address.restype = ctypes.c_void_p
        return (ctypes.c_char * MAX_MARKS).from_address(address())

    def _symbol(self, name: str) -> ctypes.c_char:
        return ctypes.c_char.in_dll(self._library, name)

    def entry(self, number: int) -> ctypes.c_void_p:
        """The function that unpacks arguments and calls the kernel exported under this number.

        Raises:
            AttributeError: the library has no such kernel.
        """
        return ctypes.cast(self._library[f"coh_call_{number}"], ctypes.c_void_p)

    def cluster(self, number: int, values: Any) -> tuple[int, int, int] | None:
        """CTAs of the kernel's clusters by axis; None where it has no `__cluster_dims__`.

        Args:
            values: pointers to its arguments, which are not looked at.
        """
        try:
            ask = self._library[f"coh_cluster_{number}"]
        except AttributeError:
            return None
        dims = (ctypes.c_uint32 * 3)(1, 1, 1)
        ask(dims, values)
        return dims[0], dims[1], dims[2]

    def parameters(self, number: int) -> Sequence[tuple[int, str]]:
        """(size in bytes, kind: p pointer, i integer, f floating, s structure) of each one."""
        parameters = (Parameter * MAX_ARGUMENTS)()
        count = self._library[f"coh_describe_{number}"](parameters)
        return [(p.size, chr(p.kind)) for p in parameters[:count]]
