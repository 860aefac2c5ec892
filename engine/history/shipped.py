"""Figures that ship with Attune: compiler reports and simulated times of the ladder's kernels.

    attune variants --renew    writes them; see `engine.kernel_figures.rung`

There is a file for each of some GPUs, so that pages with many kernels need not compile and simulate
them. An entry's key is a hash of its inputs, so a kernel with another source, config, compiler or
GPU has no entry. The files also have a hash of the simulating code and are ignored when that
changes.
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
_MAX_BYTES = 8 << 20
# Files of `engine.machine_code` that only explain results or compute a launch's output values
# (included by `native/emulator.cpp` if it `EXECUTES`). Their changes do not change any figure.
_EXPLAINS = ("advice", "cubin_files.py", "execution.py", "overlap.py", "launch_report.py")
_EXECUTES = re.compile(r"execute.*|(?:races|quick|no_marks)\.h")

# Comments of C++ and of Python.
_COMMENTS = (
    re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL),
    re.compile(r'(?:^|(?<=\s))#[^\n]*|"""(?:[^"\\]|\\.|"(?!""))*"""', re.DOTALL),
)

Fields: TypeAlias = Mapping[str, Any]  # a dataclass' fields as JSON


@dataclass(frozen=True, slots=True)
class ShippedFigures:
    """Figures of kernels, by the keys of the caches."""

    reports: dict[str, Fields] = field(default_factory=dict)  # `CompileReport`, by its key
    ctas: dict[str, Fields] = field(default_factory=dict)  # `engine.history.ctas`
    counts: dict[str, Fields] = field(default_factory=dict)  # `engine.kernel_figures.rung`

    def add(self, others: ShippedFigures) -> None:
        """Add all figures of another file."""
        self.reports.update(others.reports)
        self.ctas.update(others.ctas)
        self.counts.update(others.counts)

    def report(self, key: str) -> tuple[Mapping[str, str], Mapping[str, PtxasInfo]] | None:
        """Return symbols and entries of a compile, as for `engine.model.kernel.known_report`."""
        if (fields := self.reports.get(key)) is None:
            return None
        return fields["symbols"], {n: PtxasInfo(**info) for n, info in fields["entries"].items()}

    def add_report(self, report: CompileReport) -> None:
        """Add a report for `report`."""
        entries = {name: asdict(info) for name, info in report.entries.items()}
        self.reports[report.key] = {"symbols": dict(report.symbols), "entries": entries}


def shipped_figures() -> ShippedFigures:
    """Return the figures of all GPUs that the present code simulated."""
    return _all(FOLDER, FOLDER.stat().st_mtime_ns if FOLDER.is_dir() else 0)


@functools.lru_cache(maxsize=2)
def _all(folder: Path, _stamp: int) -> ShippedFigures:
    figures = ShippedFigures()
    for path in sorted(folder.glob("*.json")):
        if (found := read(path)) is not None:
            figures.add(found)
    return figures


def path_for(gpu: str) -> Path:
    """Return the file with the figures of a GPU."""
    return FOLDER / f"{gpu.replace(' ', '_')}.json"


def read(path: Path) -> ShippedFigures | None:
    """Read the figures of one file; None if it is damaged or from another version of the code."""
    try:
        data = json.loads(files.read(path, _MAX_BYTES))
        if data["format"] != _FORMAT or data["simulator"] != simulator_digest():
            return None
        return ShippedFigures(data["reports"], data["ctas"], data["counts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # they are simulated again


def write(gpu: str, compiler: str, made: str, figures: ShippedFigures) -> Path:
    """Write a file for `read`, one entry per line.

    Args:
        compiler: `NVRTC 13.5.37`, for information; the entries' keys contain it, too.
        made: date.

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
    """Return a hash of the code that simulates kernels and counts their machine code, without
    comments."""
    digest = hashlib.sha256()
    for path in simulating_files():
        digest.update(f"{path.name}\0{code_of(path.suffix, path.read_text())}\0".encode())
    return digest.hexdigest()[:32]


def code_of(suffix: str, text: str) -> str:
    """Return the text without comments, docstrings and line breaks."""
    return " ".join(_COMMENTS[suffix == ".py"].sub(" ", text).split())


def simulating_files() -> list[Path]:
    """Return the sources that affect simulated figures: those of `engine.machine_code`, without
    modules that only explain or execute, and their callers."""
    folder = Path(machine_code.__file__).parent
    own = [Path(__file__).with_name(name) for name in ("simulation.py", "persistent.py")]
    code = [p for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".cpp", ".h")]
    return own + [
        path
        for path in code
        if path.relative_to(folder).parts[0] not in _EXPLAINS and not _EXECUTES.fullmatch(path.name)
    ]
