"""Set-up before any import: BLAS threads, Hypothesis, isolation from the user's settings.

Every `ATTUNE_…` variable is cleared or points into a folder of this test run, so that tests neither
read nor change the user's files; compiled kernels are shared by all tests of the run. Only two
variables for the tests are kept: `ATTUNE_TESTS_CACHE` names a folder in which a nested run finds
what the outer run has compiled, `ATTUNE_TESTS_NATIVE` one in which the steps of `.ci/run` share
the output of compilers, but no times of kernels.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cpu_time import CpuTime
from hypothesis import settings

if TYPE_CHECKING:
    from software_nvml import SoftwareNvml

# The xdist workers use all cores. Additional threads of BLAS and torch wait for each other by
# spinning, which made a test of 0.2 s take 14 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: the time of an example depends mostly on other processes of the machine.
settings.register_profile("attune", deadline=None)
settings.load_profile("attune")

_OF_THE_TESTS = ("ATTUNE_CHROMIUM", "ATTUNE_REQUIRE_BROWSER", "ATTUNE_SOFTWARE_", "ATTUNE_TESTS_")
# The parts of the cache that are stored by content.
_COMPILED = ("cpu", "software_gpu", "cubin", "machine_code")
_BUILDS = (*_COMPILED, "sass")
_FOLDERS = ("ATTUNE_CACHE_DIR", "ATTUNE_DATA_DIR", "ATTUNE_LOCK_DIR")
_ROOT = pytest.StashKey[Path]()
_BUILDER = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--software-gpu",
        nargs="?",
        const="L4",
        metavar="NAMES",
        help="run what is marked gpu on a GPU in software (L4, or names of the table of GPUs)",
    )
    parser.addoption("--cpu-time", action="store_true", help="the CPU time of tests by file")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment once per run; xdist workers inherit it."""
    gc.disable()  # imported and collected objects are permanent, so walking them is a waste
    if config.option.cpu_time:
        config.pluginmanager.register(CpuTime())
    if hasattr(config, "workerinput"):
        return
    for name in [
        n for n in os.environ if n.startswith("ATTUNE_") and not n.startswith(_OF_THE_TESTS)
    ]:
        del os.environ[name]
    root = config.stash[_ROOT] = Path(tempfile.mkdtemp(prefix="attune-tests-"))
    # Write bytecode, as otherwise each process of the run would compile the tree again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name in _FOLDERS:
        os.environ[name] = str(root / name.removeprefix("ATTUNE_").lower())
    cache = Path(os.environ["ATTUNE_CACHE_DIR"])
    kept = Path(os.environ.setdefault("ATTUNE_TESTS_CACHE", str(cache))).absolute()
    native = Path(os.environ.get("ATTUNE_TESTS_NATIVE", kept)).absolute()
    for name in _BUILDS:
        builds = native if name in _COMPILED else kept
        for folder in (cache, builds, builds / name):
            folder.mkdir(mode=0o700, exist_ok=True)
        if builds != cache:
            (cache / name).symlink_to(builds / name)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start building all C++ libraries if the run has several workers."""
    config = session.config
    if not config.getoption("tx", None) or config.option.collectonly:
        return
    config.stash[_BUILDER] = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("native_builds.py"))],
        cwd=Path(__file__).resolve().parents[1],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run `pytest -m gpu` in one process, as several would disturb each other's measurements.

    With `--software-gpu` the run restarts in a process that finds the software driver, whose
    libraries are built into the user's cache.
    """
    if (gpus := config.option.software_gpu) and "ATTUNE_SOFTWARE_GPU_TABLE" not in os.environ:
        from engine.base.errors import AttuneError, ToolMissing
        from engine.software_gpu.process_environment import software_environment

        try:
            environment = software_environment(os.environ, gpus)
        except ToolMissing as missing:
            print(f"skipped, as there is no GPU in software: {missing}")
            return 0
        except AttuneError as error:  # a failed or slow compile, an unknown GPU
            raise pytest.UsageError(f"no GPU in software can be made: {error}") from None
        command = [sys.executable, "-m", "pytest", *config.invocation_params.args]
        os.execve(sys.executable, [*command, "-m", "gpu"], environment)
    if config.option.software_gpu:  # each process has its own
        return None
    if re.search(r"(?<!not )\bgpu\b", config.option.markexpr) and not hasattr(
        config, "workerinput"
    ):
        config.option.numprocesses = 0
    return None


@pytest.fixture
def software_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SoftwareNvml:
    from software_nvml import SoftwareNvml

    return SoftwareNvml(monkeypatch, tmp_path / "nvml")


@pytest.fixture
def nothing_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the shipped figures of kernels, so that only what is simulated has a time."""
    from engine.history import shipped

    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "no_figures")


@pytest.fixture
def ladder_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes copies of these rungs the ladder, and returns their folder."""
    from kernels.ladder import LADDER, Ladder
    from kernels.variant import KERNELS_DIR

    def put(*ids: str) -> Path:
        folder = tmp_path / "ladder"
        folder.mkdir()
        for source in (*(LADDER.by_id(name).source for name in ids), *KERNELS_DIR.glob("*.cuh")):
            shutil.copy(source, folder)
        monkeypatch.setattr(LADDER, "__dict__", vars(Ladder(folder)))
        return folder

    return put


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put browser stories first, as a long one at the end would run alone."""
    items.sort(key=lambda item: item.path.parent.name != "browser")


def pytest_collection_finish() -> None:
    """Freeze imported and collected objects for the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if builder := config.stash.get(_BUILDER, None):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(builder.pid, signal.SIGKILL)
        builder.wait()
    if root := config.stash.get(_ROOT, None):
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def sass_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in this process, as starting the one that `sass` uses takes a second
    (tests/cli/test_limited_process.py tests it)."""
    monkeypatch.setattr("engine.cli.sass.run_in_process", lambda run, args, _: run(args))


@pytest.fixture
def set_local_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the detected GPU (name and UUID), or why there is none."""

    def put(
        why: str | None = None,
        *,
        name: str = "NVIDIA L4",
        uuid: str = "GPU-1",
        num_sms: int | None = None,
    ) -> None:
        found = (why, name, num_sms)
        monkeypatch.setattr("engine.backends.cuda.availability._local_gpu", lambda: found)
        monkeypatch.setattr("engine.measure.device_lock._uuid", lambda: uuid)

    return put


@pytest.fixture
def set_history(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Return a function that sets the history which commands open."""

    def put(history: object) -> None:
        for command in ("bounds", "evaluate", "variants"):
            monkeypatch.setattr(f"engine.cli.{command}.open_history", lambda: history)

    return put
