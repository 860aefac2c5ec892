"""Jobs for the child process that executes kernels, and the client that sends them.

A `Job` is plain data: buffers, and launches that run in order on them. `Client` starts the child,
sends it jobs and survives its crashes. `CpuBackend` makes a job from a launch plan; tests and tools
that need other buffers make their own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base.errors import Status
from engine.base.launch_arguments import Argument, describe_type, encode_argument
from engine.base.memory import available_host_memory
from engine.cuda_on_host import build
from engine.cuda_on_host.build import HostLibrary, export_number
from engine.cuda_on_host.debug_lines import LineTable
from engine.cuda_on_host.error_kinds import ErrorKind, status_of
from engine.cuda_on_host.instrument import ExecutedStatements
from engine.cuda_on_host.transport import Channel, SharedSegment

# Bytes on either side of a buffer that are writable and checked afterwards; memory beyond is not
# accessible.
DEFAULT_SLACK_BYTES = 4096


# The order in which a job runs its CTAs.
Schedule: TypeAlias = Literal["in_order", "random", "reverse"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer in global memory.

    It has the bytes of `data`, or `size_bytes` bytes that are zero or poisoned (NaN in every
    format, and uninitialised for the check build).
    """

    name: str
    data: npt.NDArray[Any] | None = None
    size_bytes: int = 0
    fill: Literal["poison", "zero"] = "poison"
    read_only: bool = False
    returned: bool = False  # its bytes after the first run are returned
    # For a partial run: `size_bytes` of addresses, of which only these pieces, (offset, bytes), are
    # accessible; `data` and the returned bytes are the concatenated pieces.
    pieces: tuple[tuple[int, int], ...] | None = None
    each_launch: bool = False  # `data` is restored before each run of all launches
    opens_itself: bool = False  # without pieces: a page becomes accessible on first access

    @property
    def bytes(self) -> int:
        if self.pieces is not None:
            return sum(length for _, length in self.pieces)
        return self.size_bytes if self.data is None else self.data.nbytes


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    dynamic_smem_bytes: int = 0
    ctas: tuple[int, ...] | None = None  # linear indices of CTAs to run; None: all
    # Cluster size of the launch; None: the kernel's __cluster_dims__.
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Launches that run in order on one set of buffers."""

    library: HostLibrary
    buffers: tuple[Buffer, ...]
    launches: tuple[KernelLaunch, ...]
    schedule: Schedule = "in_order"
    seed: int = 0
    repeat: bool = False  # run everything twice and compare the returned buffers
    slack_bytes: int = DEFAULT_SLACK_BYTES
    inside: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # pointers into buffers
    # Run each CTA of the only launch until it accesses an inaccessible part of a buffer, and return
    # where.
    probe: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a job, or of a launch on any backend.

    `status` is PASSED (it ran), COMPILE_ERROR, OUT_OF_MEMORY, TIMEOUT, one of FAULTS, or SKIPPED
    (the backend cannot execute it). A client gives the bytes of buffers (`returned`); a backend
    gives what it makes of them instead: `out`, `gradients` and `lse`, None unless PASSED.
    """

    status: Status
    reason: str = ""  # one sentence with file.cu:line, CTA and thread where known
    log: str = ""  # the kernel's output, or the last output of the process
    returned: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    changed_inputs: tuple[str, ...] = ()
    repeatable: bool = True
    guards_intact: bool = True
    execution_ms: float | None = None  # wall time of all launches of the first run
    touched: tuple[tuple[str, int] | None, ...] = ()  # for a probe: (buffer, byte) of each CTA
    executed: ExecutedStatements | None = None  # in the check build
    warnings: tuple[str, ...] = ()  # for a launch that passed; in the check build
    kind: ErrorKind | None = None  # kind of an error that the runtime detects
    warning_kinds: tuple[ErrorKind, ...] = ()  # kinds of the warnings
    round_trip_ms: float | None = None  # from the caller to the child and back, execution included
    # Raw bits, poisoned before the run, [batch, num_heads, seqlen, head_dim].
    out: npt.NDArray[Any] | None = None
    # Outputs of the backward pass by name (dQ, dK, dV), instead of `out`.
    gradients: Mapping[str, npt.NDArray[Any]] | None = None
    lse: npt.NDArray[np.float32] | None = None  # natural log., [batch, num_heads, seqlen]
    repeated: str = ""  # which part ran a second time, as a sentence; empty: all or nothing

    @property
    def inputs_unchanged(self) -> bool:
        return not self.changed_inputs

    @property
    def code(self) -> str:
        """Return the error's code; empty if it has none."""
        return self.kind or ""


# Memory of a job.


# Shadow memory in the check build, for written and read bytes: native/runtime.h.
_BYTES_PER_WRITTEN_BYTE = 8
_BYTES_PER_READ_BYTE = 16


def bytes_needed(job: Job) -> int:
    """Return the bytes of both processes: buffers, shared segment, the caller's returned copies."""
    needed = 0
    for buffer in job.buffers:
        needed += buffer.bytes
        if buffer.data is not None:
            needed += buffer.bytes
        if buffer.returned:
            needed += 2 * buffer.bytes
        if job.library.check and not buffer.read_only:
            needed += _BYTES_PER_WRITTEN_BYTE * buffer.bytes
            if not buffer.returned:  # an output is only written
                needed += _BYTES_PER_READ_BYTE * buffer.bytes
    return needed


_ALIGNMENT = 64  # of arrays in the shared segment, in bytes
_KILL_GRACE_S = 2.0  # time for the child to report the running line after the time limit
_MAX_LIBRARIES = 2000  # a process may have 65,530 mappings on Linux, and a library takes several
_KEPT_SEGMENT_BYTES = 256 << 20
_SMALL_JOB_BYTES = 32 << 20
_LOG_TAIL_BYTES = 16 << 10
MAX_PRINTED_BYTES = 64 << 20  # of one job; a kernel may print endlessly
_POLL_S = 0.1
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]


def worker_threads() -> int:
    """Return `ATTUNE_CPU_THREADS`, else the number of processors."""
    chosen = os.environ.get("ATTUNE_CPU_THREADS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) > 0 else os.cpu_count() or 1


class _Process:
    """A running child process and the memory shared with it."""

    def __init__(self, workers: int, most_printed_bytes: int) -> None:
        self._most_printed_bytes = most_printed_bytes
        self.owner = os.getpid()
        self.libraries: set[Path] = set()
        self.segment = SharedSegment.create()
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        search_path = os.environ.get("PYTHONPATH")
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "engine.cuda_on_host.runtime_process",
                    str(theirs.fileno()), str(self.segment.descriptor), str(workers),
                ],
                pass_fds=(theirs.fileno(), self.segment.descriptor),
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                start_new_session=True,  # Ctrl-C only interrupts the caller
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), search_path]))},
            )  # fmt: skip

        self.printed_too_much = False
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch_output, daemon=True)
        self._watcher.start()

    def _watch_output(self) -> None:
        """End the child if its output would fill the disk."""
        while not self._ended.wait(_POLL_S):
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                if os.fstat(self.output.fileno()).st_size > self._most_printed_bytes:
                    self.printed_too_much = True
                    self.process.kill()
                    return

    def stop(self) -> int:
        """End the child, release everything and return its exit code, -9 if it was running."""
        self._ended.set()
        self.channel.close()
        if os.getpid() == self.owner:  # a forked process must not end the child
            self.process.kill()
            self.process.wait()
            self._watcher.join()
        self.segment.close()
        self.output.close()
        return self.process.returncode or 0

    def printed(self) -> str:
        """Return the end of the output of the child and its kernels since the last call."""
        size = os.fstat(self.output.fileno()).st_size
        tail = os.pread(self.output.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        if os.getpid() == self.owner:
            os.ftruncate(self.output.fileno(), 0)
            os.lseek(self.output.fileno(), 0, os.SEEK_SET)  # the child shares the file position
        return tail.decode("utf-8", "replace").strip()


class Client:
    """Runs jobs one at a time in a child process that is started when needed.

    Threads may share a client. After an error the child is replaced, because its memory may be
    damaged.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        free_bytes: Callable[[], int | None] = available_host_memory,
        most_printed_bytes: int = MAX_PRINTED_BYTES,
    ) -> None:
        """
        Args:
            workers: host threads that run CTAs; `ATTUNE_CPU_THREADS` or the number of processors
                when not given.
            free_bytes: limit of a job's memory; None: unknown.
            most_printed_bytes: limit of a job's output.
        """
        build.digest_at_start()
        self._workers = workers or worker_threads()
        self._free_bytes, self._most_printed_bytes = free_bytes, most_printed_bytes
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._finalizer: weakref.finalize[..., Client] | None = None

    def run(self, job: Job, timeout_s: float = 60.0) -> RunResult:
        """Run the job; failures are returned as a status with a reason."""
        with self._lock:
            needed = bytes_needed(job)
            # A small job always fits, and the check takes longer than the job.
            free = self._free_bytes() if needed > _SMALL_JOB_BYTES else None
            if free is not None and needed > free:
                return _out_of_memory(needed, f"{_size(free)} are free")
            try:
                return self._run(job, timeout_s)
            except MemoryError:
                self._stop()
                return _out_of_memory(needed, "the system refused to give it")
            except BaseException:
                self._stop()  # an unread answer must not be read as that of the next job
                raise

    def close(self) -> None:
        """End the child. The next job starts a new one."""
        with self._lock:
            self._stop()

    @property
    def process_id(self) -> int | None:
        """Return the process id of the running child; None if there is none."""
        process = self._process
        return process.process.pid if process is not None else None

    def _run(self, job: Job, timeout_s: float) -> RunResult:
        if self.process_id is None and build.changed():
            return RunResult(
                Status.LAUNCH_ERROR, f"{job.library.source} cannot run: {build.CHANGED}."
            )
        process = self._running_process()
        request, returns, size = _encode_job(job, timeout_s)
        process.segment.reserve(max(size, 1))
        request["segment_bytes"] = max(size, 1)
        memory = np.frombuffer(process.segment.memory, dtype=np.uint8)
        for buffer, encoded in zip(job.buffers, request["buffers"], strict=True):
            if buffer.data is not None:
                data = np.ascontiguousarray(buffer.data).view(np.uint8).reshape(-1)
                memory[encoded["offset"] : encoded["offset"] + buffer.bytes] = data
        process.libraries.add(job.library.path)
        begin = time.perf_counter()
        try:
            process.channel.send(request)
            answer = process.channel.receive(timeout_s + _KILL_GRACE_S)
        except TimeoutError:
            return self._timed_out(job, timeout_s, "")
        except (EOFError, BrokenPipeError, ConnectionError):
            return self._crashed(job)
        round_trip_ms = (time.perf_counter() - begin) * 1e3
        if "out_of_memory" in answer:
            raise MemoryError
        if "refused" in answer:
            return RunResult(Status.LAUNCH_ERROR, f"{job.library.source}: {answer['refused']}.")
        if "failed" in answer:
            return self._failed(job, answer["failed"], timeout_s)
        returned = {
            name: memory[offset : offset + size].copy() for name, (offset, size) in returns.items()
        }
        del memory
        log = process.printed()
        if size > _KEPT_SEGMENT_BYTES or len(process.libraries) > _MAX_LIBRARIES:
            self._stop()
        if (number := answer.get("used_local")) is not None:
            file, line, name = answer["source_map"]["locals"][number]
            return RunResult(
                Status.LAUNCH_ERROR,
                f"{file}:{line}: uninitialised local variable: '{name}' is read before anything "
                f"is written to it, and the output depends on what it held.",
                log=log,
                kind=ErrorKind.LOCAL_UNINITIALISED,
            )
        return RunResult(
            Status.PASSED,
            log=log,
            returned=returned,
            changed_inputs=tuple(answer["changed_inputs"]),
            repeatable=bool(answer["repeatable"]),
            execution_ms=float(answer["execution_ms"]),
            executed=_executed(answer),
            touched=tuple(
                None if index < 0 else (job.buffers[index].name, offset)
                for index, offset in answer.get("touched", ())
            ),
            round_trip_ms=round_trip_ms,
            warnings=tuple(_sentence(job.library, w) for w in answer.get("warnings", ())),
            warning_kinds=tuple(ErrorKind(w["kind"]) for w in answer.get("warnings", ())),
        )

    # ---- the child's life ----

    def _running_process(self) -> _Process:
        process = self._process
        if process is not None and process.owner != os.getpid():  # this is a forked process
            self._process = process = None
        if process is not None and process.process.poll() is not None:
            self._stop()
            process = None
        if process is None:
            process = self._process = _Process(self._workers, self._most_printed_bytes)
            self._finalizer = weakref.finalize(self, process.stop)
        return process

    def _stop(self) -> int:
        self._process = None
        finalizer, self._finalizer = self._finalizer, None
        code = finalizer() if finalizer is not None else None
        return code or 0

    # ---- failures ----

    def _timed_out(self, job: Job, timeout_s: float, where: str) -> RunResult:
        self._stop()
        return RunResult(
            Status.TIMEOUT,
            f"{where or job.library.source + ': '}the kernel did not finish within {timeout_s:g} s "
            f"on the CPU and was stopped.",
        )

    def _crashed(self, job: Job) -> RunResult:
        process = self._process
        log = ""
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.process.wait(_KILL_GRACE_S)
            log = process.printed()
        code = self._stop()
        if process is not None and process.printed_too_much:
            most = _size(self._most_printed_bytes)
            return RunResult(
                Status.CRASHED,
                f"{job.library.source}: the kernel printed more than {most} "
                "and was stopped: let fewer threads print.",
                log=log,
            )
        how = f"with exit code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"by {signal.Signals(-code).name}"
        hint = " (Linux does that when memory runs out)" if code == -signal.SIGKILL else ""
        return RunResult(
            Status.CRASHED,
            f"{job.library.source}: the process that ran the kernel ended {how}{hint}.",
            log=log,
        )

    def _failed(self, job: Job, failure: dict[str, Any], timeout_s: float) -> RunResult:
        process = self._process
        log = process.printed() if process is not None else ""
        self._stop()
        if failure["kind"] == ErrorKind.TIME_LIMIT:
            where = _where(job.library, failure["place"])
            at = f", CTA {_triple(failure['cta'])}, thread {_triple(failure['thread'])}"
            prefix = f"{where}: kernel {failure['entry']}{at}: " if where else ""
            return self._timed_out(job, timeout_s, prefix)
        reason = _sentence(job.library, failure)
        kind = ErrorKind(failure["kind"])
        guards_intact = kind is not ErrorKind.GUARD_ZONE
        changed = tuple(b.name for b in job.buffers if b.read_only)
        return RunResult(
            status_of(kind),
            reason,
            log=log,
            guards_intact=guards_intact,
            changed_inputs=changed if kind is ErrorKind.INPUT_WRITTEN else (),
            kind=kind,
        )


def _out_of_memory(needed: int, why: str) -> RunResult:
    return RunResult(
        Status.OUT_OF_MEMORY,
        f"Running this problem on the CPU takes {_size(needed)} of memory and {why}: choose a "
        f"smaller problem.",
    )


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _triple(numbers: Sequence[int]) -> str:
    return "({},{},{})".format(*numbers)


@functools.lru_cache(maxsize=8)
def _line_table(library: Path) -> LineTable:
    return LineTable.load(library)


def _where(library: HostLibrary, place: dict[str, Any]) -> str:
    """Return `file.cu:line`, or an empty text if unknown."""
    if place["file"]:
        return f"{Path(place['file']).name}:{place['line']}"
    if not place["program_counter"]:
        return ""
    found = _line_table(library.path).find(place["program_counter"], library.sources)
    return f"{found[0]}:{found[1]}" if found is not None else ""


def _sentence(library: HostLibrary, failure: dict[str, Any]) -> str:
    """Return an error or warning with its line, CTA and thread if known."""
    where = _where(library, failure["place"]) or library.source
    other = _where(library, failure["other_place"]) or "an unknown line"
    thread = ""
    if failure["thread"] is not None:
        thread = f", CTA {_triple(failure['cta'])}, thread {_triple(failure['thread'])}"
    message = failure["message"].replace("{other}", other)
    return f"{where}: {failure['kind']} in kernel {failure['entry']}{thread}: {message}."


def _executed(answer: dict[str, Any]) -> ExecutedStatements | None:
    source_map = answer.get("source_map")
    if source_map is None:
        return None
    statements = ((mark, file, first, last) for mark, file, first, last in source_map["statements"])
    not_compiled = ((file, first, last) for file, first, last in source_map["not_compiled"])
    return ExecutedStatements(tuple(statements), tuple(not_compiled), frozenset(answer["marks"]))


# ---- jobs as messages ----


def _encode_job(
    job: Job, timeout_s: float
) -> tuple[dict[str, Any], dict[str, tuple[int, int]], int]:
    """Return (request, (offset, size) of each returned buffer, bytes of the segment)."""
    size = 0
    returns: dict[str, tuple[int, int]] = {}

    def place(length: int) -> int:
        nonlocal size
        offset = size
        size += -(-length // _ALIGNMENT) * _ALIGNMENT
        return offset

    buffers: list[dict[str, Any]] = []
    for buffer in job.buffers:
        offset = None if buffer.data is None else place(buffer.bytes)
        return_offset = None
        if buffer.returned:
            return_offset = place(buffer.bytes)
            returns[buffer.name] = (return_offset, buffer.bytes)
        buffers.append(
            _fields_of(buffer, "name", "bytes", "size_bytes", "pieces", "opens_itself", "read_only")
            | _fields_of(buffer, "each_launch")
            | {
                "fill": buffer.fill if buffer.data is None else "data",
                "offset": offset,
                "return_offset": return_offset,
            }
        )
    request = _fields_of(job, "schedule", "seed", "repeat", "probe", "slack_bytes", "inside") | {
        "runtime": str(job.library.runtime),
        "library": str(job.library.path),
        "check": job.library.check,
        "timeout_s": timeout_s,
        "buffers": buffers,
        "launches": [_encode_launch(launch, job.library) for launch in job.launches],
    }
    return request, returns, size


def _fields_of(noun: Buffer | Job | KernelLaunch, *names: str) -> dict[str, Any]:
    """Return the fields that are sent to the child under their own names."""
    return {name: getattr(noun, name) for name in names}


def _encode_launch(launch: KernelLaunch, library: HostLibrary) -> dict[str, Any]:
    fields = _fields_of(launch, "entry", "grid", "block", "dynamic_smem_bytes", "ctas", "cluster")
    return fields | {
        "export": export_number(library, launch.entry),
        "args": [_encode_argument(argument) for argument in launch.args],
    }


def _encode_argument(argument: Argument) -> dict[str, Any]:
    encoded = encode_argument(argument)
    return {
        "type": describe_type(argument),
        "kind": encoded.kind,
        "name": argument.name,
        "data": encoded.data.hex(),
        "pointers": encoded.pointers,
    }
