"""The environment of a snapshot: what cannot be determined is None and never an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from software_nvml import SoftwareNvml, described

from engine.devices import find_device
from engine.devices.environment import collect_environment
from engine.sessions.snapshot import Environment

ROOT = Path(__file__).resolve().parents[2]


def test_the_environment_fits_the_schema() -> None:
    found = collect_environment()
    assert Environment.model_validate(json.loads(json.dumps(found)))
    assert set(found) <= set(Environment.model_fields)
    assert found["python"] == sys.version.split()[0]
    assert found["numpy"]


def test_without_a_gpu_its_fields_are_empty(software_nvml: SoftwareNvml) -> None:
    software_nvml.says("nvmlInit_v2=9")  # NVML_ERROR_DRIVER_NOT_LOADED
    found = collect_environment()
    assert (found["gpus"], found["driver"], found["cuda_driver"]) == ([], None, None)


def test_figures_of_the_driver(software_nvml: SoftwareNvml) -> None:
    """Two GPUs, of which the second one answers no query."""
    software_nvml.has(described("L4"), described("L4"))
    clocks = "sm_clock_mhz=1900 memory_clock_mhz=6251 max_memory_clock_mhz=6251"
    software_nvml.says(f"{clocks} cuda_version=13010 1:*=3")
    found = collect_environment()
    assert Environment.model_validate(found)
    assert (found["driver"], found["cuda_driver"]) == ("software", "13.1")
    assert found["gpus"][0] == {
        "name": "software L4",
        "compute_capability": "8.9",
        "memory_bytes": find_device("L4").memory_bytes,
        "sm_clock_mhz": 1900,
        "max_sm_clock_mhz": 2040,
        "memory_clock_mhz": 6251,
        "max_memory_clock_mhz": 6251,
        "power_limit_w": 72.0,
    }
    assert set(found["gpus"][1].values()) == {None}


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)


def test_commit_and_dirty_flag(tmp_path: Path) -> None:
    def found() -> tuple[str | None, bool | None]:
        told = collect_environment(tmp_path)
        return told["commit"], told["dirty"]

    assert found() == (None, None)
    git(tmp_path, "init", "-q")
    assert found() == (None, None)  # no commit yet
    (tmp_path / "v01.cu").write_text("// one")
    git(tmp_path, "add", "v01.cu")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit, dirty = found()
    assert commit is not None
    assert len(commit) == 40
    assert dirty is False
    (tmp_path / "v02.cu").write_text("// a kernel that is in no commit")
    assert found() == (commit, True)


@pytest.mark.parametrize("script", ["", "#!/bin/sh\nexec /bin/sleep 60\n"])
def test_a_missing_git_leaves_the_commit_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    (tmp_path / ".git").mkdir()
    if script:
        (tmp_path / "git").write_text(script)
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = collect_environment(tmp_path, git_timeout_s=0.2)
    assert (found["commit"], found["dirty"]) == (None, None)


def test_the_environment_imports_neither_cupy_nor_torch() -> None:
    code = (
        "import sys; from engine.devices.environment import collect_environment as c; c(); "
        "print([m for m in ('cupy', 'torch', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
