"""CuPy can be imported if the home folder is not writable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.base.files import make_cupy_folder


def test_a_home_that_cannot_be_written_gets_a_folder_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = "import os; from engine.base.files import make_cupy_folder\n"
    code += "make_cupy_folder()\n"
    code += "make_cupy_folder(); print(os.environ['CUPY_CACHE_DIR'])"
    environment = {name: os.environ[name] for name in os.environ if name != "CUPY_CACHE_DIR"}
    environment |= {"HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(made).parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # removed with the process


def test_a_chosen_folder_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "new" / "cupy"))
    make_cupy_folder()
    assert (tmp_path / "new" / "cupy").is_dir()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "new" / "cupy")
