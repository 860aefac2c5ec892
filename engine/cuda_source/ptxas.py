"""Parse the compiler's log: resources per entry, the first error, lines of inline PTX errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
_FUNCTION = re.compile(r"Function properties for '?(?P<name>[^'\s]+)'?")
_FRAME = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<store>\d+) bytes spill stores, "
    r"(?P<load>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SMEM = re.compile(r"(?P<first>\d+)(?:\+(?P<second>\d+))? bytes smem")

# `v01.cu(12): error: …` of the front end, also "catastrophic error".
_SOURCE_ERROR = re.compile(
    r"^(?P<where>[^\s():]+\(\d+\)): (?:\w+ )*error(?: #[\w-]+)?: (?P<what>.+)$"
)
_PTX_ERROR = re.compile(r"^ptxas .*input, line (?P<line>\d+); *error *: (?P<what>.+)$")
_PTXAS_ERROR = re.compile(r"^ptxas (?:error|fatal) *: (?P<what>.+)$")
_OTHER_ERROR = re.compile(r"^(?:nvrtc: |At end of source: )?error: (?P<what>.+)$")

# For a bracket that is not closed at the source's end.
_OPENED = re.compile(r"^(?P<where>[^\s():]+\(\d+\)): note #[\w-]+: to match this ")

_LOC = re.compile(r"^\s*\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)\s")
_INLINED_AT = re.compile(r"inlined_at\s+(?P<file>\d+)\s+(?P<line>\d+)")
_FILE = re.compile(r'^\s*\.file\s+(?P<number>\d+)\s+"(?P<path>[^"]+)"')

_NO_SETMAXNREG = re.compile(
    r"^(?:(?P<where>\S+\(\d+\)(?:, \S+\(\d+\))*): )?.*'setmaxnreg' ignored[; ]*(?P<why>[^.]*)", re.M
)
_WHY_NO_SETMAXNREG = {
    "unable to determine register count at entry": "it has to know how many registers threads "
    "begin with, so give the kernel __launch_bounds__(threads of a CTA, 1)",
    "to maintain minimum register requirements": "the code behind one of them needs more registers "
    "than it leaves, so raise that budget or let the code hold fewer values",
}


@dataclass(frozen=True, slots=True)
class PtxasInfo:
    """ptxas' report on one entry function."""

    registers_per_thread: int
    static_smem_bytes: int
    spill_store_bytes: int  # per thread
    spill_load_bytes: int  # per thread
    stack_bytes: int  # per thread


def parse_ptxas(log: str) -> dict[str, PtxasInfo]:
    """Return the resources of every entry function in a `--ptxas-options=-v` log, by lowered name.

    Lines of device functions that were not inlined are ignored, because ptxas includes their
    registers and stack in the caller's.
    """
    frames: dict[str, tuple[int, int, int]] = {}
    used: dict[str, tuple[int, int]] = {}
    entry = function = None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = function = match["name"]
        elif match := _FUNCTION.search(line):
            function = match["name"]
        elif (match := _FRAME.search(line)) and function is not None:
            frames[function] = (int(match["stack"]), int(match["store"]), int(match["load"]))
        elif (match := _USED.search(line)) and entry is not None:
            smem = _SMEM.search(line)
            used[entry] = (
                int(match["registers"]),
                int(smem["first"]) + int(smem["second"] or 0) if smem else 0,
            )
    infos = {}
    for name, (registers, smem_bytes) in used.items():
        stack, store, load = frames.get(name, (0, 0, 0))
        infos[name] = PtxasInfo(registers, smem_bytes, store, load, stack)
    return infos


def first_error(log: str, source_name: str, host_places: Collection[str] = ()) -> str:
    """Return the log's first error as `file.cu(line): what`, or `file.cu: what` without a line.

    Args:
        host_places: lines of host code in the source and its headers, as `header.cuh(line)`; their
            errors are returned only if there are no others.
    """
    errors = list(_errors(log, source_name))
    for where, what in errors:
        if where not in host_places:
            return f"{where}: {what}"
    if errors:
        return f"{errors[0][0]}: {errors[0][1]}"
    return f"{source_name}: the compiler failed without naming an error; see its log."


def _errors(log: str, source_name: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of each error in the log."""
    for line, following in pairwise([*log.splitlines(), ""]):
        if match := _SOURCE_ERROR.match(line):
            yield match["where"], match["what"]
        for pattern in (_PTX_ERROR, _PTXAS_ERROR, _OTHER_ERROR):
            if match := pattern.match(line):
                opened = _OPENED.match(following)
                yield opened["where"] if opened else source_name, match["what"]
                break


def ptx_error_lines(log: str) -> list[int]:
    """Return the PTX lines of ptxas' errors, in the log's order."""
    return [int(m["line"]) for line in log.splitlines() if (m := _PTX_ERROR.match(line))]


def locate_ptx_errors(log: str, ptx: str) -> str:
    """Return the log with ptxas errors on PTX lines rewritten to `file.cu(line): error: …`.

    `ptx` is ptxas' input, with line information.
    """
    lines = ptx.splitlines()
    files = {m["number"]: PurePosixPath(m["path"]).name for x in lines if (m := _FILE.match(x))}
    located = []
    for text in log.splitlines():
        match = _PTX_ERROR.match(text)
        where = _source_of(int(match["line"]), lines, files) if match else None
        located.append(f"{where}: error: in PTX: {match['what']}" if match and where else text)
    return "\n".join(located)


def _source_of(ptx_line: int, lines: list[str], files: dict[str, str]) -> str | None:
    for text in reversed(lines[:ptx_line]):
        if text.startswith("}"):  # line information of earlier functions does not apply
            return None
        if match := _LOC.match(text):
            return f"{files.get(match['file'], 'PTX')}({match['line']})"
    return None


def locate_setmaxnreg(log: str, ptx: str) -> str:
    """Return the log with the source lines of `setmaxnreg` before ptxas' message on them."""
    lines = ptx.splitlines()
    files = {m["number"]: PurePosixPath(m["path"]).name for x in lines if (m := _FILE.match(x))}
    places: list[str] = []
    for number, text in enumerate(lines):
        if "setmaxnreg." not in text:
            continue
        loc = next((x for x in reversed(lines[:number]) if _LOC.match(x)), "")
        match = _INLINED_AT.search(loc) or _LOC.match(loc)
        place = f"{files.get(match['file'], 'PTX')}({match['line']})" if match else ""
        if place and place not in places:
            places.append(place)
    found = _NO_SETMAXNREG.search(log)
    if found is None or not places:
        return log
    return f"{log[: found.start()]}{', '.join(places)}: {log[found.start() :]}"


def left_out_setmaxnreg(log: str) -> tuple[str, str] | None:
    """Return lines ("file.cu:7, 12") and reason, as a clause, if ptxas ignored every
    `setmaxnreg`."""
    found = _NO_SETMAXNREG.search(log)
    if found is None:
        return None
    where = re.sub(r"\((\d+)\)", r":\1", found["where"] or "")
    return where, _WHY_NO_SETMAXNREG.get(found["why"].strip(), found["why"].strip())
