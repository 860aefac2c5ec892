"""`sass`: count the instructions that any kernel's machine code executes, and simulate its time."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from engine.attention.config import (
    find_variant,
    fitting_config,
    has_description,
    resolve_config,
    variant_from,
)
from engine.base import files
from engine.base.errors import AttuneError, CompileError, InvalidProblem, UnknownName
from engine.cli.options import (
    PROBLEM,
    ConfigOptions,
    DefaultsOption,
    ProblemOptions,
    first_given,
    given_config,
    problem_from,
    resolved_with_note,
)
from engine.cli.output import print_json, shown_output
from engine.cli.sass_execute import run_executed
from engine.cli.sass_output import Result, as_json, print_results
from engine.cuda_source import compile_kernel
from engine.cuda_source.nvrtc import compiler_flag
from engine.devices import DeviceSpec, target_gpu
from engine.history.simulation import time_launch
from engine.machine_code.analysis import analyse, live_registers_in_background
from engine.machine_code.cubin import read_cubin
from engine.machine_code.launch import Content, Launch, arguments_and_memory, tables
from engine.machine_code.timing.timeline import beside, timeline, write_timeline
from engine.model.kernel import Kernel, analyse_plan
from engine.model.occupancy import ConfiguredVariant
from engine.own_kernels.registry import use_kernel
from engine.pipeline.request import EvaluationRequest
from engine.pipeline.simulated_launches import (
    clock_note,
    device_at,
    device_of_plan,
    given_clock,
    time_passes,
)
from engine.sessions.known_times import open_history
from kernels.source_text import sidecar_of
from kernels.variant import AUTO, Variant

T = TypeVar("T")

# Run a command in a separate process with limits, because files may be untrusted.

_MAX_TIME_S = 600
_MAX_MEMORY_BYTES = 8 << 30  # in addition to the process' memory at its start
_PR_SET_PDEATHSIG = 1


def run_in_process(run: Callable[[T], int], args: T, file: str, most_s: float = _MAX_TIME_S) -> int:
    """Run `run(args)` in a separate process with this process' output, so that `file` cannot harm
    this one.

    Args:
        most_s: time limit, seconds.

    Raises:
        CompileError: the process crashed or reached a limit.
        AttuneError: as `run`.
    """
    sys.stdout.flush()
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(child_end, run, args), daemon=True)
    process.start()
    child_end.close()
    answer: int | AttuneError | None = None
    try:
        if not parent_end.poll(most_s):
            raise CompileError(
                f"Reading {file} took more than {most_s / 60:.0f} minutes.",
                code="reading_time_limit",
            )
        with contextlib.suppress(EOFError):
            answer = parent_end.recv()
    finally:
        if answer is None:
            process.kill()
        process.join()
        parent_end.close()
    if isinstance(answer, AttuneError):
        raise answer
    if answer is None:
        raise CompileError(
            f"The process that read {file} ended by {_exit_cause(process.exitcode or 0)}: the "
            "file is damaged, uses something unsupported, or needs more memory than this machine "
            "has.",
            code="reading_process_ended",
        )
    return answer


def _exit_cause(code: int) -> str:
    if code >= 0:
        return f"itself (exit code {code})"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def _serve(answers: Connection, run: Callable[[T], int], args: T) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports the cancellation
    _set_limits()
    answer: int | AttuneError
    with shown_output():
        try:
            answer = run(args)
            sys.stdout.flush()
        except AttuneError as error:
            answer = error
        except MemoryError:
            answer = CompileError(
                "Reading the file takes more memory than the limit.", code="reading_memory_limit"
            )
    answers.send(answer)


def _set_limits() -> None:
    """Limit this process' memory, and end it with its parent."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        memory = pages * resource.getpagesize() + _MAX_MEMORY_BYTES
        _at_most(resource.RLIMIT_AS, memory)
    _at_most(resource.RLIMIT_CPU, 2 * _MAX_TIME_S)
    _at_most(resource.RLIMIT_CORE, 0)


def _at_most(limit: int, amount: int) -> None:
    soft, hard = resource.getrlimit(limit)
    known = [value for value in (amount, soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), hard))


_ARCH = re.compile(r"sm_(\d{2,3})[af]?")
_MAX_CUBIN = 256 << 20


@dataclass(frozen=True)
class SassOptions(ProblemOptions, ConfigOptions, DefaultsOption):
    """The options of `sass`."""

    kernel: str
    gpu: str | None
    arch: str | None
    clock: str | None
    timeline: str | None
    against: str | None
    listing: bool
    execute: bool
    check: bool
    lines: int
    json: bool
    entry: str | None
    flag: list[str]
    define: list[str]
    include: list[str]
    arg: list[str]
    grid: str | None
    block: str | None
    smem: int
    cold: bool
    cluster: str | None
    save: str | None


def run(args: SassOptions) -> int:
    path = Path(args.kernel)
    if _is_file(args.kernel) and path.is_file():
        return run_in_process(_run, args, path.name)
    return _run(args)


def _run(args: SassOptions) -> int:
    device = target_gpu(args.gpu) if args.gpu else None
    for flag in ("clock", "timeline", "cold"):
        if device is None and getattr(args, flag):
            raise InvalidProblem(f"--{flag} needs a simulated time: name a GPU (--gpu L4).")
    if args.clock is not None:
        given_clock(args.clock)
    if args.timeline is not None and not (folder := Path(args.timeline).absolute().parent).is_dir():
        raise UnknownName(
            f"There is no folder {folder} for the --timeline: make it, or name another."
        )
    if args.against is not None and args.timeline is None:
        raise InvalidProblem(
            "--against adds a second launch to a timeline: give --timeline FILE, too."
        )
    if args.against == args.kernel:
        raise InvalidProblem(f"--against needs a kernel other than {args.kernel}.")
    for flag in ("check", "cluster", "save"):
        if getattr(args, flag) and not args.execute:
            raise InvalidProblem(
                f"--{flag} needs --execute: give both.",
                code="sass_flag_of_execution",
            )
    if args.execute:
        return _execute(args, device)
    args = _with_auto_resolved(args, device)
    results = _results(args, device)
    if args.timeline is not None:
        _write_timeline(Path(args.timeline), args, results, device)
    if args.json:
        print_json(as_json(args.kernel, results, device))
    else:
        print_results(args.kernel, results, device, args.lines, args.listing)
    return 0


def _results(args: SassOptions, device: DeviceSpec | None) -> list[Result]:
    return _of_file(args, device) if _is_file(args.kernel) else _of_variant(args, device)


def _write_timeline(
    path: Path, args: SassOptions, results: Sequence[Result], device: DeviceSpec | None
) -> None:
    """Write a trace of the longest pass, optionally beside that of a second kernel with the same
    launch."""
    trace = _trace(results)
    if args.against is not None:
        other = _with_auto_resolved(replace(args, kernel=args.against), device)
        names = str(args.kernel), str(other.kernel)
        trace = beside(trace, _trace(_results(other, device)), names)
    write_timeline(path, trace)


def _trace(results: Sequence[Result]) -> dict[str, Any]:
    def us(result: Result) -> float:
        assert result.timed is not None
        return result.timed.simulated.latency.median_us

    longest = max(results, key=us)
    assert longest.timed is not None
    assert longest.device is not None
    return timeline(longest.analysis, longest.device, longest.timed.simulated)


def _is_file(kernel: str) -> bool:
    path = Path(kernel)
    return path.suffix in (".cu", ".cubin", ".cuh") or "/" in kernel or path.is_file()


def _with_auto_resolved(args: SassOptions, device: DeviceSpec | None) -> SassOptions:
    """Return the options with `auto` replaced by its variant and config."""
    if args.kernel != AUTO:
        return args
    request = EvaluationRequest(
        AUTO, problem_from(args), given_config(args), gpu=device.name if device else None
    )
    resolved = resolved_with_note(request, open_history())
    config = [f"{name}={value}" for name, value in resolved.config.items()]
    return replace(args, kernel=resolved.variant.id, config=config)


def _of_variant(
    args: SassOptions, device: DeviceSpec | None, variant: Variant | None = None
) -> list[Result]:
    """Return the result of each pass; times are those that `evaluate` and the pages predict."""
    if variant is None:
        for flag in ("entry", "define", "include", "flag", "arg", "grid", "block", "smem", "cold"):
            if getattr(args, flag):
                raise InvalidProblem(
                    f"--{flag} is for a FILE.cu or FILE.cubin: the launch of {args.kernel} follows "
                    "from its description. Give the problem and --config instead."
                )
        variant = find_variant(args.kernel)
    given = given_config(args)
    problem = problem_from(args, variant)
    if args.defaults_only:
        config = fitting_config(variant, given, problem, device)
    else:
        config = resolve_config(variant, given, problem, device).values
    plan = ConfiguredVariant(variant, tuple(config.items()), device).plan(problem)
    analyses = analyse_plan(plan, _arch(args, device))
    if device is None:
        return [Result(analysis, None) for analysis in analyses]
    arch = analyses[0].program.arch
    _check_runs_on(arch, device)
    with live_registers_in_background(analyses):
        kernel = Kernel.of(variant, device, plan.config)
        at = device_of_plan(kernel, args.clock, plan, analyses)
        kernel, predicted = replace(kernel, device=at), None
        if arch == device.arch:  # otherwise the time is not of this code
            predicted = open_history().estimate(kernel, plan.problem)
        timed = time_passes(kernel, plan, analyses, predicted)
    latency = predicted.latency if predicted is not None else None
    # Known times are at a clock that is not known here.
    note = clock_note(at, analyses, timed) if latency is None or latency.is_simulated else ""
    return [Result(*pair, note, at, latency) for pair in zip(analyses, timed, strict=True)]


def _execute(args: SassOptions, device: DeviceSpec | None) -> int:
    path = Path(args.kernel)
    if not _is_file(args.kernel) or (path.suffix != ".cubin" and args.grid is None):
        raise InvalidProblem(
            "--execute is for a FILE.cu or FILE.cubin with --grid, --block and --arg: a variant is "
            "executed by `evaluate --backend machine-code`.",
            code="sass_executes_files",
        )
    for flag in ("clock", "timeline", "listing", "cold"):
        if getattr(args, flag):
            raise InvalidProblem(
                f"--{flag} is for a simulation, and --execute does not simulate: leave one out."
            )
    launch, contents = _launch_of_file(args, path)
    cubin, entry = _code_of_file(args, path, device)
    if device is not None:
        _check_runs_on(read_cubin(cubin).arch, device)
    if args.save is not None and not Path(args.save).is_dir():
        raise UnknownName(f"There is no folder {args.save} to --save memory in: make it.")
    return run_executed(
        args.kernel,
        cubin,
        entry,
        launch,
        contents,
        cluster=_parse_dim3(args.cluster, "--cluster") if args.cluster else None,
        check=args.check,
        save=Path(args.save) if args.save is not None else None,
        as_json=args.json,
    )


def _of_file(args: SassOptions, device: DeviceSpec | None) -> list[Result]:
    path = Path(args.kernel)
    if not path.is_file():
        raise InvalidProblem(f"There is no file {path}: name a .cu or .cubin file, or a variant.")
    if path.suffix != ".cubin" and args.grid is None:
        if sidecar_of(path).is_file():
            return _of_variant(args, device, use_kernel(path))
        if has_description(path):
            return _of_variant(args, device, variant_from(path, path.stem))
    launch, _ = _launch_of_file(args, path)
    cubin, entry = _code_of_file(args, path, device)
    analysis = analyse(cubin, entry, launch)
    if device is None:
        return [Result(analysis, None)]
    _check_runs_on(analysis.program.arch, device)
    with live_registers_in_background([analysis]):
        time_on = partial(time_launch, analysis, is_cold=args.cold)
        at = device_at(device, args.clock, [analysis], lambda: [time_on(device)])
        timed = time_on(at)
    return [Result(analysis, timed, clock_note(at, [analysis], [timed]), at)]


def _launch_of_file(args: SassOptions, path: Path) -> tuple[Launch, tuple[Content | None, ...]]:
    if (named := first_given(args, (*PROBLEM, "config", "defaults_only"))) is not None:
        raise InvalidProblem(
            f"--{named.replace('_', '-')} is for a variant: give {path.name} --grid, --block, "
            "--arg."
        )
    for flag in ("grid", "block"):
        if getattr(args, flag) is None:
            raise InvalidProblem(
                f"A launch of {path.name} needs --{flag}, for instance --{flag} 64,1,1."
            )
    if args.smem < 0:
        raise InvalidProblem(f"--smem is a number of bytes, at least 0, not {args.smem}.")
    arguments, contents = arguments_and_memory(args.arg)
    grid, block = _parse_dim3(args.grid or "", "--grid"), _parse_dim3(args.block or "", "--block")
    known = () if args.execute else tables(contents)  # with --execute, memory contents are real
    return Launch(grid, block, args.smem, arguments, known), contents


def _code_of_file(
    args: SassOptions, path: Path, device: DeviceSpec | None
) -> tuple[bytes, str | None]:
    """Return the cubin and the requested entry."""
    return _read_cubin(args, path) if path.suffix == ".cubin" else _compile(args, path, device)


def _read_cubin(args: SassOptions, path: Path) -> tuple[bytes, str | None]:
    for flag in ("define", "include", "flag"):
        if getattr(args, flag):
            raise InvalidProblem(f"--{flag} is for a FILE.cu: {path.name} is already compiled.")
    with files.explain_os_error(f"{path} cannot be read", "name another file", named=True):
        data = files.read(path, _MAX_CUBIN)
    arch = read_cubin(data).arch
    if args.arch and args.arch.rstrip("af") != arch:
        raise InvalidProblem(
            f"{path.name} holds code for {arch}, not for {args.arch}.", code="cubin_for_other_arch"
        )
    return data, args.entry


def _compile(args: SassOptions, path: Path, device: DeviceSpec | None) -> tuple[bytes, str | None]:
    defines = tuple(_define(item) for item in args.define)
    entries = (args.entry,) if args.entry else ()
    folders = tuple(Path(folder) for folder in args.include)
    for folder in folders:
        if not folder.is_dir():
            raise InvalidProblem(f"--include {folder} is not a folder.")
    flags = tuple(compiler_flag(flag) for flag in args.flag)
    kernel = compile_kernel(path, defines, _arch(args, device), entries, folders, more_flags=flags)
    return kernel.cubin, kernel.symbols.get(args.entry, args.entry) if args.entry else None


def _define(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InvalidProblem(f"--define takes NAME or NAME=VALUE, not {item!r}.")
    return name, value if equals else "1"


def _parse_dim3(text: str, flag: str) -> tuple[int, int, int]:
    """`64` → (64, 1, 1), `64,2` → (64, 2, 1)."""
    parts = text.replace("x", ",").split(",")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise InvalidProblem(
            f"{flag} takes one to three whole numbers of at least 1, X,Y,Z, not {text!r}."
        )
    x, y, z = numbers + [1] * (3 - len(numbers))
    return x, y, z


def _arch(args: SassOptions, device: DeviceSpec | None) -> str:
    if args.arch is not None:
        if not _ARCH.fullmatch(args.arch):
            raise UnknownName(f"{args.arch!r} is not a GPU arch: write it like sm_89.")
        arch: str = args.arch
        return arch
    if device is None:
        raise InvalidProblem(
            "Machine code is made for one architecture: name a GPU (--gpu L4) or give --arch sm_89."
        )
    return device.arch


def _check_runs_on(arch: str, device: DeviceSpec) -> None:
    """Check that code runs on the device: the same major version, and the same or a later minor
    one."""
    major, minor = divmod(int(arch[3:].rstrip("af")), 10)
    own_major, own_minor = device.compute_capability
    if major != own_major or minor > own_minor:
        raise InvalidProblem(
            f"Code for {arch} does not run on {device.name} ({device.arch}): compile it for "
            f"{device.arch}, or name another GPU.",
            code="cubin_on_other_gpu",
        )
