"""The host C++ compiler, its flags for both builds, and the files of the runtime."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Literal, TypeAlias

from engine.base.errors import CompileError, ToolMissing

# How a host build is made and run where nobody says otherwise.

Schedule: TypeAlias = Literal["in_order", "random", "reverse"]


DEFAULT_ARCH = "sm_80"  # where nobody names a GPU


HOW_TO_GET_ONE = (
    "install g++ or clang++ (Debian and Ubuntu: apt install g++; macOS: xcode-select --install), "
    "or run `pip install ziglang`"
)
_VERSION_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that was found and answers."""

    command: tuple[str, ...]
    family: Literal["gcc", "clang", "zig"]
    version: str  # first line of --version; part of every cache key

    def compile_flags(self, check: bool) -> tuple[str, ...]:
        """Flags for one kernel's translation unit.

        The check build is instrumented by the compiler's thread, bounds and alignment sanitizers;
        the runtime stands in for their libraries.
        """
        flags = [
            "-fPIC",
            "-w",
            "-march=native",
            "-g1",
            "-gdwarf-4",  # the version engine/cuda_on_host/debug_lines.py reads
            "-fno-strict-aliasing",  # CUDA code reads vectors of other types through pointers
            "-fno-math-errno",
            "-fno-trapping-math",
            "-ffp-contract=fast",  # as nvcc's default -fmad=true
            "-fno-exceptions",
            "-fno-rtti",
            "-fvisibility=hidden",
        ]
        if self.family == "gcc":
            # GCC would share a template's statics between all kernel libraries of the process, and
            # would name its options in them, of which `native` is not the same on all cores.
            flags += ["-fno-gnu-unique", "-gno-record-gcc-switches"]
        if self.family == "zig":
            flags.append("-fno-sanitize=undefined")
        if not check:
            # GCC's unroll-and-jam moves what stands before an inner loop into it: an exponential
            # for each column of V instead of one for each score.
            jam = ["-fno-loop-unroll-and-jam"] if self.family == "gcc" else []
            return (*flags, "-O3", *jam)
        flags += ["-DCOH_CHECK", "-O1", "-fno-omit-frame-pointer"]
        flags += ["-fsanitize=thread", "-fsanitize=bounds,alignment"]
        if self.family == "gcc":
            flags.append("-fsanitize=bounds-strict")
        return tuple(flags)

    @property
    def preprocessed_language(self) -> str:
        """What `-x` calls C++ that went through `-E`: zig has no name for it, and as no macro is
        left defined it may be preprocessed again."""
        return "c++" if self.family == "zig" else "c++-cpp-output"

    def runtime_flags(self) -> tuple[str, ...]:
        """Flags for the runtime library, which is never instrumented.

        Without debug lines, which nothing looks up in it and which take a quarter of its build.
        """
        flags = ["-std=c++17", "-fPIC", "-w", "-march=native", "-g0", "-O2"]
        # Its functions call each other directly.
        flags += ["-fvisibility=hidden", "-fno-semantic-interposition"]
        if self.family == "zig":
            flags.append("-fno-sanitize=undefined")
        return tuple(flags)


def find_toolchain() -> Toolchain:
    """`ATTUNE_CXX` when set, else g++, clang++, c++ or the `ziglang` package, in that order.

    Raises:
        ToolMissing: there is none; the sentence says how to get one.
    """
    if sys.platform == "win32":
        raise ToolMissing(
            "The CPU backend runs on Linux and macOS: on Windows, start Attune inside WSL 2."
        )
    return _find(os.environ.get("ATTUNE_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=16)
def _find(forced: str, search_path: str) -> Toolchain:
    if forced:
        command = tuple(shlex.split(forced))
        if not command or (toolchain := _probe(command)) is None:
            raise ToolMissing(
                f"ATTUNE_CXX names {forced!r}, which does not run as a C++ compiler: correct it, "
                f"or unset it and {HOW_TO_GET_ONE}.",
                code="cxx_does_not_run",
            )
        return toolchain
    for name in ("g++", "clang++", "c++"):
        program = shutil.which(name, path=search_path)
        if program is not None and (toolchain := _probe((program,))) is not None:
            return toolchain
    if importlib.util.find_spec("ziglang") is not None:
        toolchain = _probe((sys.executable, "-m", "ziglang", "c++"))
        if toolchain is not None:
            return toolchain
    raise ToolMissing(
        f"No C++ compiler was found, and the CPU backend compiles every kernel: {HOW_TO_GET_ONE}."
    )


def _probe(command: tuple[str, ...]) -> Toolchain | None:
    try:
        answer = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    version = answer.stdout.splitlines()[0].strip()
    if "ziglang" in command or Path(command[0]).stem.startswith("zig"):
        return Toolchain(command, "zig", version)
    return Toolchain(command, "clang" if "clang" in version.lower() else "gcc", version)


@functools.lru_cache(maxsize=1)
def host_cpu() -> str:
    """What `-march=native` depends on: part of every cache key, as caches move between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    features = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return f"{platform.machine()} {' '.join(dict.fromkeys(features))}"


# The files that this backend is made of, and whether they are still those it began with.
#
# A kernel is compiled with headers from the disk and runs on a runtime and in a child process that
# may be older: after an update under a running server their structures differ, and a right kernel
# seems to have an illegal address.

PACKAGE = Path(__file__).resolve().parent
CHANGED = "the files of Attune changed since this process began, as by an update: start it again"


@functools.lru_cache(maxsize=1)
def translation_digest() -> str:
    """Of what turns a source into a library: the runtime, and what changes the source."""
    translators = [
        PACKAGE / "instrument.py",
        PACKAGE / "rewrite.py",
        *_sources(PACKAGE / "ptx"),
    ]
    return _digest([*_natives(), *translators])


@functools.lru_cache(maxsize=1)
def digest_at_start() -> str:
    """Of all files, when this was first asked."""
    return _digest_now()


def changed() -> bool:
    """Whether one of them is another than at the start. Takes some milliseconds."""
    return _digest_now() != digest_at_start()


def _digest_now() -> str:
    return _digest([*_natives(), *_sources(PACKAGE)])


def _sources(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".py", ".forms")]


def _natives() -> list[Path]:
    return [path for path in (PACKAGE / "native").rglob("*") if path.is_file()]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(PACKAGE)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


# In a source: what it runs depends on the target GPU; and the same where a limit says how.
_OF_ARCH = re.compile(r"__CUDA_ARCH|[cC]luster")
_COMPARES = re.compile(r"__CUDA_ARCH__ (<|<=|>|>=|==|!=) (\d+)\b")
_MACRO = re.compile(r"^#define (\w+) \(__CUDA_ARCH__ [^\n]*", re.MULTILINE)


def arch_flags(texts: Sequence[str], arch: str) -> tuple[str, ...]:
    """None where one library serves every GPU; those of `DEFAULT_ARCH` where all that the sources
    ask of the GPU is as there."""
    texts = _without_unused_macros(texts)
    asked = sum(len(_OF_ARCH.findall(text)) for text in texts)
    if not asked:
        return ()
    macros = arch_macros(arch)
    limits = [match for text in texts for match in _COMPARES.findall(text)]
    is_alike = asked == len(limits) and _side(limits, arch) == _side(limits, DEFAULT_ARCH)
    return arch_macros(DEFAULT_ARCH) if is_alike else macros


def _without_unused_macros(texts: Sequence[str]) -> list[str]:
    """A header may say of an arch what this kernel does not ask."""
    words = Counter(word for text in texts for word in re.findall(r"\w+", text))
    return [
        _MACRO.sub(lambda macro: "" if words[macro[1]] == 1 else macro[0], text) for text in texts
    ]


def _side(limits: Sequence[tuple[str, str]], arch: str) -> list[bool]:
    """Which of `(">=", "800")` and the like hold of an arch."""
    holds = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
    number = int(re.sub(r"\D", "", arch)) * 10
    return [holds[operator](number, int(limit)) for operator, limit in limits]


def arch_macros(arch: str) -> tuple[str, ...]:
    """`-D` options for what nvcc defines about its target: "sm_90a" → `__CUDA_ARCH__` 900 and the
    macros of its arch-specific instructions."""
    match = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if match is None:
        raise CompileError(
            f"{arch!r} is not a GPU arch: write it like sm_89 or sm_90a.", code="not_an_arch"
        )
    number, kind = f"{match[1]}0", match[2]
    macros = [f"-DCOH_CUDA_ARCH={number}"]
    if kind == "a":
        macros += [f"-D__CUDA_ARCH_FEAT_SM{match[1]}_ALL=1", f"-D__CUDA_ARCH_SPECIFIC__={number}"]
    if kind:
        macros.append(f"-D__CUDA_ARCH_FAMILY_SPECIFIC__={number}")
    return tuple(macros)
