"""Figures that ship with Attune: what the compiler and the simulator said of the ladder's kernels.

    attune variants --renew    writes them; see `engine.kernel_figures.renew`

A file for each of some GPUs, so that a page that shows many kernels need not compile and simulate
them all first. An entry's name is a hash of what it follows from: a kernel with another source,
config, compiler or GPU has no entry. The files also name the code that simulated: once that has
changed, they are not read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from engine import machine_code
from engine.base import files
from engine.cuda_source import CompileReport, PtxasInfo

FOLDER = Path(__file__).with_name("figures")
_FORMAT = 1
_MOST_BYTES = 8 << 20
# Names of `engine.machine_code` that only explain, or compute the values of a launch (what
# `native/emulator.cpp` includes where it `EXECUTES`): a change of these changes no figure.
_EXPLAINS = ("advice", "cubin_files.py", "execution.py", "overlap.py", "launch_report.py")
_EXECUTES = re.compile(r"execute.*|(?:races|quick|no_marks)\.h")

# Of C++, and of Python.
_COMMENTS = (
    re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL),
    re.compile(r'(?:^|(?<=\s))#[^\n]*|"""(?:[^"\\]|\\.|"(?!""))*"""', re.DOTALL),
)

Fields: TypeAlias = Mapping[str, Any]  # of a dataclass, as JSON has them


@dataclass(frozen=True, slots=True)
class ShippedFigures:
    """The figures of some kernels, by the names of the caches' entries."""

    reports: dict[str, Fields] = field(default_factory=dict)  # `CompileReport`, by its key
    ctas: dict[str, Fields] = field(default_factory=dict)  # `engine.history.ctas`
    counts: dict[str, Fields] = field(default_factory=dict)  # `engine.kernel_figures.rung`

    def add(self, others: ShippedFigures) -> None:
        self.reports.update(others.reports)
        self.ctas.update(others.ctas)
        self.counts.update(others.counts)

    def report(self, key: str) -> tuple[Mapping[str, str], Mapping[str, PtxasInfo]] | None:
        """Symbols and entries of a compile, as `plan.known_report` asks for them."""
        if (fields := self.reports.get(key)) is None:
            return None
        return fields["symbols"], {n: PtxasInfo(**info) for n, info in fields["entries"].items()}

    def add_report(self, report: CompileReport) -> None:
        """Add what `report` returns."""
        entries = {name: asdict(info) for name, info in report.entries.items()}
        self.reports[report.key] = {"symbols": dict(report.symbols), "entries": entries}


def shipped_figures() -> ShippedFigures:
    """The figures of all GPUs that the present code simulated."""
    return _all(FOLDER, FOLDER.stat().st_mtime_ns if FOLDER.is_dir() else 0)


@functools.lru_cache(maxsize=2)
def _all(folder: Path, _stamp: int) -> ShippedFigures:
    figures = ShippedFigures()
    for path in sorted(folder.glob("*.json")):
        if (found := read(path)) is not None:
            figures.add(found)
    return figures


def path_for(gpu: str) -> Path:
    """Where the figures of a GPU stand."""
    return FOLDER / f"{gpu.replace(' ', '_')}.json"


def read(path: Path) -> ShippedFigures | None:
    """The figures of one file; None where it is damaged or other code simulated them."""
    try:
        data = json.loads(files.read(path, _MOST_BYTES))
        if data["format"] != _FORMAT or data["simulator"] != simulator_digest():
            return None
        return ShippedFigures(data["reports"], data["ctas"], data["counts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # they are simulated again


def write(gpu: str, compiler: str, made: str, figures: ShippedFigures) -> Path:
    """Write what `read` reads, an entry a line.

    Args:
        compiler: `NVRTC 13.5.37`, for people; the entries' names hold it, too.
        made: the date.

    Raises:
        OSError: it cannot be written.
    """
    head = {
        "format": _FORMAT,
        "gpu": gpu,
        "origin": "compiled and simulated; nothing was measured",
        "made": made,
        "compiler": compiler,
        "simulator": simulator_digest(),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    for name, entries in asdict(figures).items():
        rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(entries.items()))
        lines.append(f"{json.dumps(name)}: {{\n{rows}\n}}")
    path = path_for(gpu)
    path.parent.mkdir(exist_ok=True)
    files.write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return path


@functools.cache
def simulator_digest() -> str:
    """Of the code that simulates kernels and counts their machine code, without its comments."""
    digest = hashlib.sha256()
    for path in simulating_files():
        digest.update(f"{path.name}\0{code_of(path.suffix, path.read_text())}\0".encode())
    return digest.hexdigest()[:32]


def code_of(suffix: str, text: str) -> str:
    """The text without comments, docstrings and line breaks."""
    return " ".join(_COMMENTS[suffix == ".py"].sub(" ", text).split())


def simulating_files() -> list[Path]:
    """Sources that decide what is simulated: those of machine code but for what only explains or
    executes it, and what asks them."""
    folder = Path(machine_code.__file__).parent
    own = [Path(__file__).with_name(name) for name in ("simulation.py", "persistent.py")]
    code = [p for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".cpp", ".h")]
    return own + [
        path
        for path in code
        if path.relative_to(folder).parts[0] not in _EXPLAINS and not _EXECUTES.fullmatch(path.name)
    ]
