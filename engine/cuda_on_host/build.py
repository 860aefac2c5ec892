"""Build a shared library for this machine's CPU from a `.cu` file, or take it from the cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

from engine.base.cxx import (
    Toolchain,
    find_built,
    find_or_build,
    find_toolchain,
    host_cpu,
    last_line,
    run_compiler,
)
from engine.base.errors import CompileError
from engine.cuda_on_host.error_kinds import explain
from engine.cuda_on_host.instrument import instrument
from engine.cuda_on_host.ptx import has_asm, translate_asm
from engine.cuda_on_host.rewrite import ATTRIBUTE, TranslatedFile, place_cluster_dims, translate
from engine.cuda_source.sources import FOR_DEVICE, CppStandard, implied, read_sources

DEFAULT_ARCH = "sm_80"  # if no GPU is given
PACKAGE = Path(__file__).resolve().parent
NATIVE_DIR = PACKAGE / "native"
_ALWAYS_INCLUDED = frozenset(  # by cuda_on_host.h
    f"{name}.h" for name in ("float", "limits", "math", "stddef", "stdint", "stdio", "string")
) | {"limits", "type_traits", "utility"}


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """A compiled kernel source, ready for the child process to load."""

    path: Path
    runtime: Path  # the runtime library it was linked with
    source: str  # "v01_fa1_baseline.cu"
    sources: tuple[str, ...]  # the source and its headers, as named in error messages
    entries: tuple[str, ...]
    check: bool
    build_s: float  # 0.0 if from the cache


def build_kernels(
    source: Path,
    entries: Sequence[str],
    defines: Sequence[tuple[str, str]] = (),
    check: bool = False,
    arch: str = DEFAULT_ARCH,
    include_folders: Sequence[Path] = (),
    cpp: CppStandard = "c++17",
) -> HostLibrary:
    """Compile `source`, or take it from the cache.

    Args:
        entries: the kernels to launch: names, or name expressions (`fwd<64, true>`).
        defines: `-D` macros as (name, value).
        check: True: the check build; False: the fast build.
        arch: the target ("sm_90", "sm_90a"), which sets `__CUDA_ARCH__`.
        include_folders: folders of the kernel's headers, besides its own.
        cpp: the C++ standard.

    Raises:
        CompileError: the source does not compile; the message starts with `file.cu:line` and `log`
            is the compiler's output.
        ToolMissing: there is no compiler.
    """
    toolchain = find_toolchain()
    sources = read_sources(source, include_folders)
    files = _translated(sources)
    standard = sorted(FOR_DEVICE.intersection(sources.foreign) - _ALWAYS_INCLUDED)
    _require_entries(files, entries)
    flags = (f"-std={cpp}", *compile_flags(toolchain, check))
    flags += arch_flags([file.text for file in files], arch)
    exports = "".join(f"COH_EXPORT({i}, {entry})\n" for i, entry in enumerate(entries))
    # Macros in the source instead of options, because the runtime's headers come first.
    macros = implied(sources.foreign)
    macros += "".join(f"#define {name} {value}\n" for name, value in defines)
    originals = {file.name: file.text.partition("\n")[2] for file in files}
    main = TranslatedFile(files[0].name, f"{macros}{files[0].text}\nCOH_MODULE\n{exports}")
    files = (main, *files[1:])
    texts = [(file.name, file.text) for file in files]
    key = _key("kernels", toolchain, flags, _runtime_name(toolchain), texts, standard)
    headers = _Headers(toolchain, flags, tuple(standard), _of_toolkit(sources.foreign))
    first_error = functools.partial(_first_error, source.name, files)

    def build(folder: Path) -> Path:
        (folder / _TRANSLATED).mkdir()
        for file in files:
            (folder / _TRANSLATED / file.name).write_text(file.text, encoding="utf-8")
        for name, source_file in zip(originals, sources.files, strict=True):
            # The files that `#line` names, from which the compiler prints excerpts.
            (folder / name).write_text(source_file.text, encoding="utf-8")
        # Relative names, so that equal sources give equal libraries in any folder.
        include = headers.place(folder)
        compile_command = [*toolchain.command, *flags, f"-ffile-prefix-map={folder}=."]
        translated = f"{_TRANSLATED}/{main.name}"
        uses_asm = any(has_asm(file.text) for file in files)
        clusters = any(ATTRIBUTE in file.text for file in files)
        if uses_asm or check or clusters:
            preprocess = [*compile_command, *include, "-E", "-x", "c++", translated]
            run_compiler(preprocess, folder, "read.ii", source.name, first_error=first_error)
            text = (folder / "read.ii").read_text(encoding="utf-8")
            cluster_exports = ""
            if clusters:
                kernels = place_cluster_dims(text)
                _require_cluster_gpu(list(filter(kernels.of, entries)), source.name, arch)
                text, cluster_exports = kernels.text, kernels.exports(entries)
            if check:
                text = instrument(text, originals)
            if uses_asm:
                text = translate_asm(text, originals, entries)
            text += cluster_exports
            (folder / "kernels.ii").write_text(text, encoding="utf-8")
            compile_command += ["-x", toolchain.preprocessed_language, "kernels.ii"]
        else:
            compile_command += [*include, "-x", "c++", translated]
        run_compiler(
            [*compile_command, "-c"], folder, "kernels.o", source.name, first_error=first_error
        )
        link_command = [*toolchain.command, "-shared", "kernels.o", str(build_runtime(toolchain))]
        run_compiler(link_command, folder, "kernels.so", source.name)
        return folder / "kernels.so"

    def build_both(folder: Path) -> Path:
        _require_unchanged()
        # The first kernel on a machine needs the runtime too, which is built in parallel.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(build_runtime, toolchain)  # errors are raised when linking needs it
            return build(folder)

    path, build_s = find_or_build(f"{source.stem}-{key}", build_both)
    names = tuple(file.name for file in files)
    runtime = build_runtime(toolchain)
    return HostLibrary(path, runtime, source.name, names, tuple(entries), check, build_s)


# Each run of a kernel looks its library up by the translated source.
_translated = functools.lru_cache(maxsize=64)(translate)


def build_runtime(toolchain: Toolchain) -> Path:
    """Build the runtime library that all kernel libraries of a process share."""
    name = _runtime_name(toolchain)
    if sys.platform == "darwin":
        naming = ["-install_name", f"@rpath/{name}.so"]
    else:
        naming = [f"-Wl,-soname,{name}.so"]

    def build(folder: Path) -> Path:
        _require_unchanged()
        compile_command = [*toolchain.command, *toolchain.runtime_flags(), "-c"]
        compile_command.append(f"-ffile-prefix-map={folder}=.")

        def compile_unit(source: Path) -> str:
            output = f"{source.stem}.o"
            run_compiler([*compile_command, str(source)], folder, output, source.name)
            return output

        units = sorted((NATIVE_DIR / "units").glob("*.cpp"))
        with ThreadPoolExecutor(len(units)) as pool:  # in parallel: the first Run waits
            objects = list(pool.map(compile_unit, units))
        link_command = [*toolchain.command, "-shared", *naming, *objects, "-lpthread", "-lm"]
        run_compiler(link_command, folder, "runtime.so", "the runtime library")
        return folder / "runtime.so"

    return find_or_build(name, build, alone=True)[0]


# ---- headers that every kernel includes ----


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers before a kernel's text, which GCC can precompile.

    Precompiled, they contain the toolkit's headers too, which are then skipped in the source. Clang
    gains nothing, because it compiles the preprocessed text again.
    """

    toolchain: Toolchain
    flags: tuple[str, ...]
    standard: tuple[str, ...]  # before CUDA's keywords, whose macros break them
    toolkit: tuple[str, ...]  # that the source includes

    def place(self, folder: Path) -> list[str]:
        """Write them into a build's folder and return the options that include them."""
        self._write(folder, ())
        options = [f"-I{_TOOLKIT_DIR}", "-I.", "-include", _HEADERS]
        if self.toolchain.family != "gcc":
            return options
        precompiled = find_built(self._name())
        if precompiled is None:
            self._precompile_when_missed_again()
            return options
        (folder / f"{_HEADERS}.gch").symlink_to(precompiled)
        return [*options, "-fpch-preprocess"]

    def precompile(self) -> None:
        """Raises: CompileError, ToolMissing."""

        def build(folder: Path) -> Path:
            self._write(folder, self.toolkit)
            command = [*self.toolchain.command, *self.flags, f"-I{_TOOLKIT_DIR}"]
            command += ["-x", "c++-header", _HEADERS]
            run_compiler(command, folder, f"{_HEADERS}.gch", _HEADERS)
            return folder / f"{_HEADERS}.gch"

        find_or_build(self._name(), build, alone=True, suffix=".gch")

    def _precompile_when_missed_again(self) -> None:
        """Precompile in the background once a second kernel needs the same headers."""
        with _missed_lock:
            missed = _missed_headers[self._name()] = _missed_headers.get(self._name(), 0) + 1
        if missed == 2:
            threading.Thread(target=self._try_to_precompile, name="precompile-headers").start()

    def _try_to_precompile(self) -> None:
        with contextlib.suppress(CompileError, OSError):  # kernels compile without it, too
            self.precompile()

    def _name(self) -> str:
        key = _key("headers", self.toolchain, self.flags, self.standard, self.toolkit)
        return f"attune-cpu-headers-{key}"

    def _write(self, folder: Path, toolkit: Sequence[str]) -> None:
        names = [f"<{name}>" for name in self.standard]
        names += [f'"{NATIVE_DIR / "cuda_on_host.h"}"', *(f"<{name}>" for name in toolkit)]
        text = "".join(f"#include {name}\n" for name in names)
        (folder / _HEADERS).write_text(text, encoding="utf-8")


_HEADERS = "attune_headers.h"
_TRANSLATED = "translated"  # folder of the translated source
_TOOLKIT_DIR = NATIVE_DIR / "toolkit"
_missed_headers: dict[str, int] = {}
_missed_lock = threading.Lock()


def precompile_headers() -> None:
    """Precompile the headers of the ladder's kernels, if it makes the compiler faster.

    Raises:
        CompileError: they do not compile, or cannot be written to the cache.
        ToolMissing: there is no compiler.
    """
    toolchain = find_toolchain()
    if toolchain.family == "gcc":
        of_ladder = ("cuda_bf16.h", "cuda_fp16.h")
        flags = ("-std=c++17", *compile_flags(toolchain, False))
        _Headers(toolchain, flags, (), of_ladder).precompile()


def _of_toolkit(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if (_TOOLKIT_DIR / name).is_file()))


def _runtime_name(toolchain: Toolchain) -> str:
    return f"attune-cpu-runtime-{_key('runtime', toolchain, toolchain.runtime_flags())}"


def export_number(library: HostLibrary, entry: str) -> int:
    """Return the number under which a library exports a kernel; -1 if it does not."""
    return library.entries.index(entry) if entry in library.entries else -1


def _require_entries(files: Sequence[TranslatedFile], entries: Sequence[str]) -> None:
    """Report missing entries, which the compiler would report after the file's last line."""
    for entry in entries:
        name = entry.partition("<")[0].rpartition("::")[2].strip()
        if not any(re.search(rf"\b{re.escape(name)}\b", file.text) for file in files):
            raise CompileError(
                f"{files[0].name} has no kernel {entry!r}: every pass needs a `__global__` "
                "function of its entry's name.",
                code="no_such_entry",
            )


def _require_cluster_gpu(entries: Sequence[str], source: str, arch: str) -> None:
    if entries and int(re.sub(r"\D", "", arch)) < 90:
        raise CompileError(
            f"{source}: kernel {entries[0]} has {ATTRIBUTE}, and {arch} has no thread block "
            "clusters: choose a GPU of sm_90 or newer.",
            code="clusters_need_sm_90",
        )


def _key(kind: str, toolchain: Toolchain, flags: Sequence[str], *more: object) -> str:
    parts = [
        kind,
        toolchain.command,
        toolchain.version,
        host_cpu(),
        flags,
        translation_digest(),
        more,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def _first_error(source: str, files: Sequence[TranslatedFile], log: str) -> str:
    match = re.search(r"^([^\s:][^:\n]*:\d+):(?:\d+:)? (?:fatal )?error: (.*)$", log, re.MULTILINE)
    if match is not None:
        where, message = match[1], match[2]
        names = "|".join(re.escape(file.name) for file in files)
        # An error in a header of the CPU backend is reported at the kernel's line that uses it.
        if files and not re.match(rf"(?:{names}):", where):
            user = re.search(rf"^(?:In file included from )?({names}):\d+", log, re.MULTILINE)
            where = user[0].rpartition(" ")[2] if user is not None else where
        return explain(where, message, {file.name: file.text for file in files})
    return last_line(source, log)


def compile_flags(toolchain: Toolchain, check: bool) -> tuple[str, ...]:
    """Return flags for one kernel's translation unit.

    The check build uses the compiler's thread, bounds and alignment sanitizers, with the runtime
    instead of their libraries.
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
    if toolchain.family == "gcc":
        # Otherwise GCC shares a template's statics between all kernel libraries of the process, and
        # records its options, of which `native` differs between cores.
        flags += ["-fno-gnu-unique", "-gno-record-gcc-switches"]
    if toolchain.family == "zig":
        flags.append("-fno-sanitize=undefined")
    if not check:
        # GCC's unroll-and-jam moves code before an inner loop into it: an exponential for each
        # column of V instead of one for each score.
        jam = ["-fno-loop-unroll-and-jam"] if toolchain.family == "gcc" else []
        return (*flags, "-O3", *jam)
    flags += ["-DCOH_CHECK", "-O1", "-fno-omit-frame-pointer"]
    flags += ["-fsanitize=thread", "-fsanitize=bounds,alignment"]
    if toolchain.family == "gcc":
        flags.append("-fsanitize=bounds-strict")
    return tuple(flags)


# Detects changes of this backend's own files while the process runs.
#
# A kernel is compiled with headers from the disk, but the runtime and the child process may be
# older. After an update under a running server their structures differ, and a correct kernel seems
# to have an illegal address.

CHANGED = "the files of Attune changed since this process began, as by an update: start it again"


@functools.lru_cache(maxsize=1)
def translation_digest() -> str:
    """Return a hash of everything that affects a library: the runtime, and the translation."""
    translators = [
        PACKAGE / "instrument.py",
        PACKAGE / "rewrite.py",
        *_sources(PACKAGE / "ptx"),
    ]
    return _digest([*_natives(), *translators])


@functools.lru_cache(maxsize=1)
def digest_at_start() -> str:
    """Return the hash of all files at the first call."""
    return _digest_now()


def changed() -> bool:
    """Return True if a file has changed since the start. Takes some milliseconds."""
    return _digest_now() != digest_at_start()


def _require_unchanged() -> None:
    if changed():
        raise CompileError(
            f"The kernel cannot be compiled for the CPU: {CHANGED}.",
            code="attune_changed_under_way",
        )


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


# Source text that depends on the target, and comparisons with a limit.
_OF_ARCH = re.compile(r"__CUDA_ARCH|[cC]luster")
_COMPARES = re.compile(r"__CUDA_ARCH__ (<|<=|>|>=|==|!=) (\d+)\b")
_MACRO = re.compile(r"^#define (\w+) \(__CUDA_ARCH__ [^\n]*", re.MULTILINE)


def arch_flags(texts: Sequence[str], arch: str) -> tuple[str, ...]:
    """Return the arch macros; None if one library serves every GPU.

    If all conditions in the sources have the same result as for `DEFAULT_ARCH`, its macros."""
    texts = _without_unused_macros(texts)
    asked = sum(len(_OF_ARCH.findall(text)) for text in texts)
    if not asked:
        return ()
    macros = arch_macros(arch)
    limits = [match for text in texts for match in _COMPARES.findall(text)]
    is_alike = asked == len(limits) and _side(limits, arch) == _side(limits, DEFAULT_ARCH)
    return arch_macros(DEFAULT_ARCH) if is_alike else macros


def _without_unused_macros(texts: Sequence[str]) -> list[str]:
    """Return the texts without macros on the arch that this kernel does not use."""
    words = Counter(word for text in texts for word in re.findall(r"\w+", text))
    return [
        _MACRO.sub(lambda macro: "" if words[macro[1]] == 1 else macro[0], text) for text in texts
    ]


def _side(limits: Sequence[tuple[str, str]], arch: str) -> list[bool]:
    """Return which comparisons such as `(">=", "800")` are true for an arch."""
    holds = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
    number = int(re.sub(r"\D", "", arch)) * 10
    return [holds[operator](number, int(limit)) for operator, limit in limits]


def arch_macros(arch: str) -> tuple[str, ...]:
    """Return `-D` options for nvcc's target macros: "sm_90a" → `__CUDA_ARCH__` 900 and the macros
    of its arch-specific instructions."""
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
