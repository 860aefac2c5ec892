"""NVRTC in its own process: a timeout or crash is an error of one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import CompileError
from engine.cuda_source import compile_kernel, compiler
from engine.cuda_source.compiler import Compile
from engine.cuda_source.nvrtc import toolchain

pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")

GOOD = 'extern "C" __global__ void k(int* x) { *x = 1; }\n'
# 2^40 different instantiations.
ENDLESS = """
template <int Depth, long long Path> struct Tree {
    static constexpr int value =
        Tree<Depth - 1, 2 * Path>::value + Tree<Depth - 1, 2 * Path + 1>::value;
};
template <long long Path> struct Tree<0, Path> { static constexpr int value = 1; };
extern "C" __global__ void k(int* x) { *x = Tree<40, 1>::value; }
"""


@pytest.fixture(autouse=True)
def none_idle() -> None:
    while compiler._idle:
        compiler._idle.pop().stop()


def compiled(source: Path) -> bytes:
    return compile_kernel(source, (), "sm_89", ("k",)).cubin


def test_an_endless_compile_is_stopped(cuda_file: Callable[[str], Path]) -> None:
    options = ("--gpu-architecture=sm_89",)
    endless = Compile(str(toolchain().library), ENDLESS, "kernel.cu", (), ("k",), options, "CUBIN")
    begin = time.monotonic()
    with raises(CompileError, "compile_time_limit", "kernel.cu"):
        compiler.compile_apart(endless, time_limit_s=1.0)
    assert time.monotonic() - begin < 20
    assert not compiler._idle  # its process has ended
    assert compiled(cuda_file(GOOD)).startswith(b"\x7fELF")


def test_a_compiler_that_dies_gives_a_one_sentence_error(cuda_file: Callable[[str], Path]) -> None:
    compiled(cuda_file(GOOD))
    (child,) = compiler._idle
    killer = threading.Timer(1.0, os.kill, (child.process.pid, signal.SIGKILL))
    killer.start()
    with raises(CompileError, "compiler_died", "SIGKILL"):
        compiled(cuda_file(ENDLESS))
    killer.join()
    # A process that dies while idle is replaced.
    compiled(cuda_file(GOOD + "// other\n"))
    (child,) = compiler._idle
    child.process.kill()
    child.process.wait()
    assert compiled(cuda_file(GOOD + "// another\n")).startswith(b"\x7fELF")


def test_threads_compile_at_the_same_time_and_one_process_is_kept(
    cuda_file: Callable[[str, str], Path],
) -> None:
    sources = [cuda_file(GOOD + f"// {number}\n", f"{number}.cu") for number in range(4)]
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda at=at: found.append(compiled(at))) for at in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    kept = [child.process.pid for child in compiler._idle]
    assert 1 <= len(kept) <= compiler._MAX_IDLE
    compiled(cuda_file(GOOD + "// again\n", "again.cu"))
    assert sorted(child.process.pid for child in compiler._idle) == sorted(kept)


@pytest.mark.slow
def test_the_compiler_process_ends_with_its_parent(tmp_path: Path) -> None:
    source = tmp_path / "endless.cu"
    source.write_text(ENDLESS, encoding="utf-8")
    code = (
        "import threading, time\nfrom pathlib import Path\n"
        "from engine.cuda_source import compile_kernel, compiler\n"
        "first = compiler._Child()\nprint(first.process.pid, flush=True)\n"
        "compiler._idle.append(first)\n"
        f"compile_kernel(Path({str(source)!r}), (), 'sm_89', ('k',))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        time.sleep(2.0)
        os.kill(child, 0)  # raises if it has ended
        process.kill()
    deadline = time.monotonic() + 10.0
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()
