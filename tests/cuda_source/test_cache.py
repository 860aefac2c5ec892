"""The cache on disk: its folder, damaged entries, and writing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.files import cache_root, read_entry, write_entry


def test_an_environment_variable_sets_the_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cache_root() == tmp_path / "elsewhere"


def test_the_cache_variable_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", "~/attune-cache")
    assert cache_root() == Path.home() / "attune-cache"


@pytest.mark.parametrize("value", [None, ""])
def test_the_default_cache_folder_is_the_platforms(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import platformdirs

    monkeypatch.delenv("ATTUNE_CACHE_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("ATTUNE_CACHE_DIR", value)
    assert cache_root() == Path(platformdirs.user_cache_dir("attune", appauthor=False))


def test_importing_the_cache_imports_no_platformdirs() -> None:
    code = "import sys, engine.base.files; sys.exit('platformdirs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(payload=st.binary(max_size=2000))
def test_an_entry_is_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes
) -> None:
    path = tmp_path_factory.mktemp("entries") / "deep" / "entry"
    assert write_entry(path, payload)
    assert read_entry(path) == payload
    assert [p.name for p in path.parent.iterdir()] == ["entry"]


@given(payload=st.binary(min_size=1, max_size=300), where=st.floats(0, 1), bit=st.integers(0, 7))
def test_one_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, where: float, bit: int
) -> None:
    path = tmp_path_factory.mktemp("entries") / "entry"
    write_entry(path, payload)
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1 << bit
    path.write_bytes(content)
    assert read_entry(path) is None


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    write_entry(path, b"payload\nwith lines\n")
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert read_entry(path) is None, length


def test_absent_and_a_folder_read_as_absent(tmp_path: Path) -> None:
    assert read_entry(tmp_path / "absent") is None
    assert read_entry(tmp_path) is None


def test_an_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not write_entry(tmp_path / "file" / "entry", b"x")


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    assert not write_entry(tmp_path / "entry", b"x")
    assert list(tmp_path.iterdir()) == [tmp_path / "entry"]
    assert list((tmp_path / "entry").iterdir()) == []


def test_an_entry_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    write_entry(path, b"old")
    write_entry(path, b"new and longer")
    assert read_entry(path) == b"new and longer"
