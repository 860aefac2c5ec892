"""Compile `.cu` files with NVRTC for any GPU, without one, to cubin, resources and log.

CuPy gives the default NVRTC, `other_nvrtc` finds further versions, and `compiler` runs them.
Results are cached on disk by the hash of their inputs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self, TypeAlias

from engine.base.errors import (
    CompileError,
    InvalidBuild,
    InvalidProblem,
    ToolMissing,
    UnknownName,
)
from engine.base.files import MAX_LOG, cache_root, make_cupy_folder, read_entry, write_entry
from engine.cuda_source.compiler import Compile, Compiled, NvrtcLibrary, compile_apart
from engine.cuda_source.host_code import host_lines
from engine.cuda_source.ptxas import (
    PtxasInfo,
    first_error,
    left_out_setmaxnreg,
    locate_ptx_errors,
    locate_setmaxnreg,
    parse_ptxas,
    ptx_error_lines,
)
from engine.cuda_source.sources import (
    IMPLICIT,
    LIMITED_GROUPS,
    CppStandard,
    Sources,
    includes_library,
    lacks_libcu,
    read_sources,
    replacement_headers,
    require_libraries,
    uses_implicit,
)
from engine.cuda_source.toolkit import (
    INSTALL_HINT,
    choose_include_dir,
    cuda_folders,
    find_include_dir,
    headers_beside,
    hint,
    loaded_nvrtc,
    more_headers,
    other_nvrtc,
    version_of,
)

# Tunables that become compiler options instead of macros.
#
# A description lists them with its own (`maxrregcount = {values = [0, 64], default = 0, …}`), so
# that sweeps, predictions and tuned configs handle them like any other; 0 leaves an option out.
# They are not needed for what a source can say: `#pragma unroll UNROLL`,
# `__launch_bounds__(THREADS, MIN_CTAS)`, which overrides maxrregcount.

# Macro → option for a nonzero value.
_OPTIONS: dict[str, Callable[[str], str]] = {
    "MAXRREGCOUNT": lambda value: f"--maxrregcount={value}",
    "FAST_MATH": lambda _: "--use_fast_math",
    "PTXAS_LEVEL": lambda value: f"--ptxas-options=-O{value}",
}
_VERSION = "NVRTC"  # the compiler's version: 1209 is 12.9; 0 is the one that CuPy loads


def options_of(defines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the compiler options for macros in order: `-D`, or the option in the table above."""
    options = []
    for name, value in defines:
        if name == _VERSION:
            continue
        option = _OPTIONS.get(name)
        if option is None:
            options.append(f"-D{name}={value}")
        elif value != "0":
            options.append(option(value))
    return tuple(options)


def compiler_version(defines: Iterable[tuple[str, str]]) -> int:
    """Return the NVRTC version that macros select, 1209 for 12.9; 0: the default."""
    value = dict(defines).get(_VERSION, "0")
    return int(value) if value.isdigit() else 0


# No --use_fast_math: kernels use intrinsics where they trade accuracy for speed.
# Line information costs no instructions and gives errors in inline PTX their source line.
# constexpr functions and class members usually have no execution space.
_FLAGS = (
    "--generate-line-info",
    "--ptxas-options=-v",
    "--device-as-default-execution-space",
)

_ARCH = re.compile(r"sm_(?P<number>\d{2,3})(?P<suffix>[af]?)")
# NVRTC's two errors for unknown archs such as sm_77 and sm_89a.
_UNKNOWN_VARIANT = re.compile(r"invalid value for --gpu-architecture|--nv_arch")
_WRONG_ENTRY = re.compile(
    r"^__nv_name_map\(\d+\): error: (?P<what>.*)\n\s*#pragma nv_mangled_name (?P<entry>.*)$",
    re.MULTILINE,
)
_ENTRY_ERROR = re.compile(r"^__nv_name_map\(.*$", re.MULTILINE)
_OTHER_THAN_ENTRY = re.compile(r"^(?!__nv_name_map).*\berror(?: #[\w-]+)?:", re.MULTILINE)
_KERNEL = re.compile(
    r"\b__global__\b(?:[^;{}()]|__(?:launch_bounds|cluster_dims)__\s*\((?:[^()]|\([^()]*\))*\))*?"
    r"(?P<name>[A-Za-z_]\w*)\s*\((?!\()"
)
_UNKNOWN_OPTION = re.compile(r"\bunrecognized option (?P<option>\S+)")
_MISSING_HEADER = re.compile(
    r"(?:could not|cannot) open source file "
    r'"(?P<name>(?:cuda|crt/|mma\.h|cooperative_groups|nv/)[^"]*)"'
)
# For libcu++, which cooperative groups of clusters include; no kernel of the ladder does.
_CCCL_HINT = "pip install 'nvidia-cuda-cccl=={major}.*'"


_OF_PTXAS = "--ptxas-options"
_PTXAS_FLAG = re.compile(r"-(?:dlcm|dscm|O\d|opt-level|preserve-relocs|lineinfo|suppress)\b.*")
_RESERVED_FLAG = re.compile(
    r"--?(?:gpu-architecture|arch|gencode|dlink|ltoir|dlto|optix|I|D|U)\b.*"
)


def compiler_flag(text: str) -> str:
    """Return an nvcc flag in NVRTC's form: `-dlcm=cg` → `--ptxas-options=-dlcm=cg`.

    Raises:
        InvalidProblem: it is not a flag, or Attune has another option for it.
    """
    flag = {"-std": "--std", "-use_fast_math": "--use_fast_math"}.get(text.split("=")[0], "")
    if flag:
        text = flag + text[text.index("=") :] if "=" in text else flag
    if _RESERVED_FLAG.fullmatch(text):
        raise InvalidProblem(
            f"--flag={text} is not for --flag: --arch, --include and --define say that.",
            code="flag_of_attune",
        )
    if not re.fullmatch(r"--?[A-Za-z][\w.=,:+-]*", text):
        raise InvalidProblem(
            f"--flag takes a flag of the compiler, --flag=-dlcm=cg, not {text!r}.",
            code="compiler_flag_form",
        )
    return f"{_OF_PTXAS}={text}" if _PTXAS_FLAG.fullmatch(text) else text


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The compiler's report on one source with one set of macros for one arch."""

    arch: str  # "sm_89", "sm_90a"
    # By symbol, and by entry as requested: `fwd<64, true>`.
    entries: Mapping[str, PtxasInfo]
    symbols: Mapping[str, str]  # names of the requested entries in the cubin
    log: str  # the compiler's output: warnings, then ptxas' report
    flags: tuple[str, ...]  # all options but the toolkit's include folder
    source_sha256: str  # hash of the `.cu` file; `key` covers its headers, too
    key: str  # content address: source, headers, flags and NVRTC's version


@dataclass(frozen=True, slots=True)
class CompiledKernel(CompileReport):
    """The report and the machine code."""

    cubin: bytes


@dataclass(frozen=True, slots=True)
class Toolchain:
    """An installed NVRTC."""

    library: Path
    version: tuple[int, int]
    release: str  # the wheel's full version; empty for other installations
    archs: tuple[int, ...]  # compute capabilities without the dot
    include_dir: Path

    @property
    def name(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    @property
    def exact_name(self) -> str:
        """Return the name with the wheel's full version, if known."""
        return f"NVRTC {self.release}" if self.release else self.name


@functools.cache
def toolchain() -> Toolchain:
    """Find NVRTC, once per process (about 0.5 s, for the import of CuPy).

    Raises:
        ToolMissing: CuPy, NVRTC or the CUDA headers are not installed.
    """
    make_cupy_folder()
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise ToolMissing(
            f"CuPy, which brings the CUDA compiler, does not import ({error}): {INSTALL_HINT}",
            code="cupy_import",
        ) from error
    try:
        version = tuple(nvrtc.getVersion())
        archs = tuple(sorted(nvrtc.getSupportedArchs()))
        library = loaded_nvrtc(version)
    except Exception as error:  # CuPy raises any exception of its loader
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ToolMissing(
            f"CuPy is installed but its compiler NVRTC does not load ({reason}): {INSTALL_HINT}",
            code="nvrtc_load",
        ) from error
    return Toolchain(library, version, _release(version[0]), archs, find_include_dir(version))


def _toolchain(version: int) -> Toolchain:
    """Return the NVRTC of a version, 1209 for 12.9; 0: the default. Raises ToolMissing."""
    usual = toolchain()
    if version == 0 or (wanted := version_of(version)) == usual.version:
        return usual
    return _other_toolchain(wanted)


@functools.cache
def _other_toolchain(wanted: tuple[int, int]) -> Toolchain:
    path = other_nvrtc(wanted)
    try:
        headers = choose_include_dir(headers_beside(path), wanted)
    except ToolMissing:
        headers = find_include_dir(wanted)
    return Toolchain(path, wanted, "", NvrtcLibrary(path).archs(), headers)


def _release(major: int) -> str:
    for wheel in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(wheel)
    return ""


def compile_kernel(
    source: Path,
    defines: tuple[tuple[str, str], ...],
    arch: str,
    entries: tuple[str, ...],
    include_folders: tuple[Path, ...] = (),
    cpp: CppStandard = "c++17",
    more_flags: tuple[str, ...] = (),
    tools: Toolchain | None = None,
) -> CompiledKernel:
    """Compile `source` for `arch` ("sm_75" … "sm_120", also "sm_90a"), or take it from the cache.

    Args:
        entries: the kernels to launch: names, qualified as in C++, or name expressions
            (`flash::fwd<64, true>`), which instantiate templates.
        include_folders: folders of the kernel's headers, besides its own.
        cpp: the C++ standard.
        more_flags: compiler flags that go before Attune's (`compiler_flag`).
        tools: the compiler; default: the version that the macros ask for.

    Raises:
        CompileError: the source does not compile (names `file.cu(line)` and holds the log), lacks
            one of `entries` as a `__global__` function, or this NVRTC does not compile for the
            arch (lists those it knows), or the compiler does not end (`compiler`).
        UnknownName: `arch` is no arch at all.
        ToolMissing: CuPy, NVRTC or the CUDA headers are not installed.
    """
    build = _Build.prepare(source, defines, arch, entries, include_folders, cpp, more_flags, tools)
    kernel = build.cached()
    if kernel is None:
        kernel = build.compile()
        write_entry(build.path, _to_bytes(kernel))
    return kernel


def cached_compile(
    source: Path,
    defines: tuple[tuple[str, str], ...],
    arch: str,
    entries: tuple[str, ...],
    include_folders: tuple[Path, ...] = (),
    cpp: CppStandard = "c++17",
) -> CompiledKernel | None:
    """Return the result of `compile_kernel` if cached; raises the same errors."""
    return _Build.prepare(source, defines, arch, entries, include_folders, cpp).cached()


# Finds symbols and entries of a report by its key, if the caller knows them.
FindReport: TypeAlias = Callable[[str], tuple[Mapping[str, str], Mapping[str, PtxasInfo]] | None]


def known_report(
    source: Path,
    defines: tuple[tuple[str, str], ...],
    arch: str,
    entries: tuple[str, ...],
    include_folders: tuple[Path, ...],
    cpp: CppStandard,
    find: FindReport,
) -> CompileReport | None:
    """Return the cached report, else the one that `find` knows, which has no log."""
    build = _Build.prepare(source, defines, arch, entries, include_folders, cpp)
    kernel = build.cached()
    if kernel is not None or (found := find(build.key)) is None:
        return kernel
    symbols, infos = found
    return CompileReport(
        arch=build.arch,
        entries=infos,
        symbols=symbols,
        log="",
        flags=build.flags,
        source_sha256=build.sources.source_sha256,
        key=build.key,
    )


def _check_arch(arch: str, tools: Toolchain) -> None:
    match = _ARCH.fullmatch(arch)
    known = ", ".join(f"sm_{number}" for number in tools.archs)
    if match is None:
        raise UnknownName(
            f"{arch!r} is not a GPU arch: write it like sm_89; NVRTC knows {known}.",
            code="arch_form",
        )
    if int(match["number"]) not in tools.archs:
        raise CompileError(
            f"{tools.name} does not compile for {arch}: it knows {known}.", code="arch_not_compiled"
        )


@dataclass(frozen=True, slots=True)
class _Build:
    """One compile, to be looked up in the cache or run."""

    tools: Toolchain
    sources: Sources
    headers: tuple[tuple[str, str], ...]  # (name as included, text)
    arch: str
    flags: tuple[str, ...]
    entries: tuple[str, ...]
    key: str

    @classmethod
    def prepare(
        cls,
        source: Path,
        defines: tuple[tuple[str, str], ...],
        arch: str,
        entries: tuple[str, ...],
        include_folders: tuple[Path, ...],
        cpp: CppStandard,
        more_flags: tuple[str, ...] = (),
        tools: Toolchain | None = None,
    ) -> Self:
        tools = tools or _toolchain(compiler_version(defines))
        _check_arch(arch, tools)
        of_cuda = {folder: cuda_folders(folder) for folder in include_folders}
        libraries = tuple(chain.from_iterable(of_cuda.values()))
        own_folders = tuple(folder for folder, found in of_cuda.items() if not found)
        sources = read_sources(source, own_folders)
        own = tuple((file.name, file.code) for file in sources.included)
        # Folders of library headers, used if the source includes any.
        folders = (tools.include_dir, *libraries)
        if includes_library(sources):
            folders += more_headers(tools.include_dir)
        require_libraries(sources, folders)
        headers = (*own, *replacement_headers(sources, folders))
        macros = options_of(defines)
        options = {flag.split("=")[0] for flag in more_flags}
        usual = (f"--std={cpp}", *_FLAGS)
        own_flags = (flag for flag in usual if flag.split("=")[0] not in options - {_OF_PTXAS})
        paths = (f"-I{folder.resolve()}" for folder in libraries)
        flags = (f"--gpu-architecture={arch}", *own_flags, *more_flags, *macros, *paths)
        if uses_implicit(sources):
            flags += (f"--pre-include={IMPLICIT}",)
        if lacks_libcu(sources, folders):
            flags += (f"-D{LIMITED_GROUPS}",)
        code = sources.main.code
        content = [tools.version, tools.release, flags, sources.name, code, headers, entries]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return cls(tools, sources, headers, arch, flags, entries, key)

    @property
    def path(self) -> Path:
        return cache_root() / "cubin" / self.key[:2] / self.key

    def cached(self) -> CompiledKernel | None:
        payload = read_entry(self.path)
        if payload is None:
            return None
        try:
            kernel = _from_bytes(payload)
        except (KeyError, TypeError, ValueError):
            return None
        if kernel.key != self.key:
            return None
        return replace(kernel, source_sha256=self.sources.source_sha256)

    def compile(self) -> CompiledKernel:
        cubin, symbols, log = self._run(self.flags, "CUBIN")
        if cubin is None:
            raise self._failure(log)
        found = parse_ptxas(log)
        if left_out_setmaxnreg(log) is not None:
            log = locate_setmaxnreg(log, self._ptx())
        return CompiledKernel(
            arch=self.arch,
            cubin=cubin,
            entries=found | {entry: found[symbol] for entry, symbol in symbols.items()},
            symbols=symbols,
            log=log[-MAX_LOG:],  # ptxas' report is at the end
            flags=self.flags,
            source_sha256=self.sources.source_sha256,
            key=self.key,
        )

    def _failure(self, log: str) -> CompileError | ToolMissing:
        if missing := _MISSING_HEADER.search(log):
            name, major = missing["name"], self.tools.version[0]
            of_cccl = name.startswith(("nv/", "cuda/"))
            return ToolMissing(
                f"The CUDA header {name} is missing from {self.tools.include_dir}: "
                f"{_CCCL_HINT.format(major=major) if of_cccl else hint(major)}",
                code="cuda_header_missing",
            )
        if _UNKNOWN_VARIANT.search(log):
            plain = self.arch.rstrip("af")
            return CompileError(
                f"{self.tools.name} does not compile for {self.arch}: it knows {plain}, which has "
                "no such variant.",
                log[:MAX_LOG],
                code="arch_without_variant",
            )
        if ptx_error_lines(log):
            log = locate_ptx_errors(log, self._ptx())
        wrong = _WRONG_ENTRY.search(log)
        if wrong is not None and not _OTHER_THAN_ENTRY.search(log):
            why, code = self._no_such_kernel(wrong["entry"].strip(), wrong["what"])
            return InvalidBuild(why, log[:MAX_LOG], code=code)
        if unknown := _UNKNOWN_OPTION.search(log):
            why = f"{self.tools.name} has no option {unknown['option']}: leave it out."
            return InvalidBuild(why, log[:MAX_LOG])
        # Names are looked up at the source's end, where an earlier error may make them fail.
        host = {f"{f.name}({line})" for f in self.sources.files for line in host_lines(f.code)}
        first = first_error(_ENTRY_ERROR.sub("", log), self.sources.name, host)
        return CompileError(first, log[:MAX_LOG], code="nvrtc_error")

    def _no_such_kernel(self, entry: str, what: str) -> tuple[str, str]:
        """Return sentence and code."""
        names = {m["name"] for file in self.sources.files for m in _KERNEL.finditer(file.code)}
        known = ", ".join(sorted(names)) or "none"
        name, is_template, _ = entry.partition("<")
        is_there = name.split("::")[-1].strip() in names
        if is_there and not is_template:
            why = (
                f"{entry} of {self.sources.name} cannot be compiled by its name alone ({what}): "
                f"name a template with its arguments, as in {entry}<128>, and a function in a "
                f"namespace with it, as in space::{entry}."
            )
            return why, "entry_by_name_alone"
        why = f" ({what})" if is_there else ""
        why = f"{self.sources.name} has no __global__ function {entry}{why}: it has {known}."
        return why, "entry_missing"

    def _ptx(self) -> str:
        """Return the PTX that ptxas rejected, with line information."""
        virtual = f"--gpu-architecture=compute_{self.arch.removeprefix('sm_')}"
        ptx, _, _ = self._run((virtual, *self.flags[1:]), "PTX")
        return ptx.decode(errors="replace") if ptx is not None else ""

    def _run(self, flags: tuple[str, ...], output: str) -> Compiled:
        toolkit = (self.tools.include_dir, *more_headers(self.tools.include_dir))
        return compile_apart(
            Compile(
                str(self.tools.library),
                self.sources.main.code,
                self.sources.name,
                self.headers,
                self.entries,
                (*flags, *(f"-I{folder}" for folder in toolkit)),
                output,
            )
        )


def _to_bytes(kernel: CompiledKernel) -> bytes:
    """Encode as a line of JSON, then the cubin."""
    head = {name: value for name, value in asdict(kernel).items() if name != "cubin"}
    return json.dumps(head).encode("ascii") + b"\n" + kernel.cubin


def _from_bytes(payload: bytes) -> CompiledKernel:
    """Decode `_to_bytes`. Raises KeyError, TypeError or ValueError for other bytes."""
    line, _, cubin = payload.partition(b"\n")
    head = json.loads(line)
    head["entries"] = {name: PtxasInfo(**info) for name, info in head["entries"].items()}
    head["flags"] = tuple(head["flags"])
    return CompiledKernel(**{**head, "cubin": cubin})
