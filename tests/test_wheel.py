"""The wheel has every file that the engine and the app read, and an installation works."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def tracked(*tops: str) -> list[str]:
    """Return the files that a commit made now would have."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *tops]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_data_file_is_of_a_kind_that_is_installed() -> None:
    """All data files except documents and their pictures are of an installed kind."""
    text = "".join((ROOT / name).read_text() for name in tracked() if name.endswith(".md"))
    pictures = {Path(link).name for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)}
    data = [
        name
        for name in tracked("app", "engine", "kernels")
        if not name.endswith((".py", ".md")) and Path(name).name not in pictures
    ]
    assert len(data) > 100
    assert [name for name in data if not is_installed(name)] == []
    shipped = SETUPTOOLS["data-files"]["share/attune/sessions"]
    assert all(any(fnmatch(s, p) for p in shipped) for s in tracked("sessions") if ".json" in s)


def is_installed(name: str) -> bool:
    package, _, path = name.partition("/")
    # `**/` in a pattern like `**/*.h` matches any folder or none.
    patterns = [p.removeprefix("**/") for p in SETUPTOOLS["package-data"][package]]
    return any(fnmatch(path, p) for p in patterns)


def test_every_pattern_names_a_file() -> None:
    """Every pattern of package data matches a file, so none is left from a moved folder."""
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert any((ROOT / package).glob(pattern)), (package, pattern)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of the working tree, made by the build backend without downloads."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        copy = folder / "tree" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=folder / "tree", check=True, capture_output=True)
    shutil.rmtree(folder / "tree")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fresh environment with the wheel, and the dependencies of the running one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv")]
    wanted = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run([*pip, *wanted], check=True, capture_output=True, env=environment(folder))
    packages = next((folder / "venv").glob("lib/python*/site-packages"))
    mine = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "running.pth").write_text("\n".join(mine))
    for nvidia in (Path(path) / "nvidia" for path in mine):
        # NVRTC is looked up beside the packages of this environment.
        if nvidia.is_dir() and not (packages / "nvidia").exists():
            (packages / "nvidia").symlink_to(nvidia)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return variables without the checkout on the path and without warnings of other packages."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "PIP_USER"}
    return kept | {"HOME": str(folder), "ATTUNE_DATA_DIR": str(folder / "data")}


def run(folder: Path, *command: str) -> str:
    """Run a program of the environment outside the checkout."""
    (folder / "elsewhere").mkdir(exist_ok=True)
    done = subprocess.run(
        [str(folder / "venv/bin" / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        cwd=folder / "elsewhere",
        env=environment(folder),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_types_notices_and_sessions(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for end in ("engine/py.typed", "THIRD_PARTY_NOTICES.md", "l4_v01_7-problems.json"):
        assert any(name.endswith(end) for name in names), end


@pytest.mark.slow
def test_an_installed_attune_imports_and_evaluates(installed: Path) -> None:
    where = "import engine as attune, engine, sys; print(engine.__file__, *dir(attune))"
    told = run(installed, "python", "-c", where)
    assert str(installed) in told
    assert str(ROOT) not in told
    shown = run(installed, "attune", "evaluate", "v01", "--gpu", "L4", "--seqlen", "64", "-D", "32")
    assert shown.startswith("PASSED")
    assert "predicted" in shown
    assert "l4_v01_7-problems" in run(installed, "attune", "sessions")
    assert run(installed, "attune", "--version").startswith("attune ")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_an_installed_attune_starts_its_app(installed: Path) -> None:
    """The app answers on the loopback only, and ends on a signal."""
    (installed / "elsewhere").mkdir(exist_ok=True)
    port = free_port()
    server = subprocess.Popen(
        [
            str(installed / "venv/bin/attune"),
            "app",
            f"--server.port={port}",
            "--server.headless=true",
            "--token",
        ],
        cwd=installed / "elsewhere",
        env=environment(installed),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert answer(server, f"http://127.0.0.1:{port}/_stcore/health") in (200, 403)
        server.send_signal(signal.SIGTERM)
        told, _ = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    assert f"localhost:{port}/?token=" in told
    assert "Traceback" not in told


def answer(server: subprocess.Popen[str], url: str) -> int:
    """Return the status of the first response."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as got:
                return int(got.status)
        except urllib.error.HTTPError as refused:
            return refused.code
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer: {server.communicate()[0] if server.poll() else 'running'}")
