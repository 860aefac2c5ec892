"""Which C++ compiler is used, and the error if there is none."""

from __future__ import annotations

import sys

import pytest
from words import raises, says

from engine.base.cxx import find_toolchain
from engine.base.errors import ToolMissing
from engine.cuda_on_host.build import compile_flags


@pytest.fixture
def path_folder(tmp_path, monkeypatch):
    """Return a folder that is the whole search path."""
    monkeypatch.delenv("ATTUNE_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_ziglang(monkeypatch):
    monkeypatch.setitem(sys.modules, "ziglang", None)  # as if it were not installed


def pretend_compiler(path, version, exit_code=0):
    path.write_text(f"#!/bin/sh\necho '{version}'\nexit {exit_code}\n")
    path.chmod(0o755)


@pytest.mark.usefixtures("path_folder", "no_ziglang")
def test_a_missing_compiler_gives_installation_instructions():
    with pytest.raises(ToolMissing) as error:
        find_toolchain()
    text = str(error.value)
    assert says(text, "no_cxx_found")
    for way in ("g++", "clang++", "pip install ziglang"):
        assert way in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "version", "family"),
    [
        ("g++", "g++ (Debian 12.2.0-14) 12.2.0", "gcc"),
        ("clang++", "Debian clang version 14.0.6", "clang"),
        ("g++", "Apple clang version 15.0.0", "clang"),  # on macOS g++ is clang
        ("zig-c++", "clang version 21.1.0 (https://github.com/ziglang/zig-bootstrap)", "zig"),
    ],
)
def test_compiler_families_are_told_by_their_version_text(
    path_folder, monkeypatch, name, version, family
):
    pretend_compiler(path_folder / name, version)
    monkeypatch.setenv("ATTUNE_CXX", str(path_folder / name) if family == "zig" else "")
    toolchain = find_toolchain()
    assert toolchain.family == family
    # zig does not support preprocessed C++ as a language.
    assert (toolchain.preprocessed_language == "c++") == (family == "zig")
    assert toolchain.version == version
    assert ("-fno-gnu-unique" in compile_flags(toolchain, check=False)) == (family == "gcc")


def test_gxx_is_preferred_to_clang_and_broken_compilers_are_skipped(path_folder):
    pretend_compiler(path_folder / "clang++", "clang version 17")
    pretend_compiler(path_folder / "g++", "g++ 13")
    assert find_toolchain().family == "gcc"
    pretend_compiler(path_folder / "c++", "g++ 11")
    pretend_compiler(path_folder / "g++", "", exit_code=1)
    from engine.base import cxx

    cxx._first_working.cache_clear()
    assert find_toolchain().family == "clang"


def test_forced_compiler(path_folder, monkeypatch):
    pretend_compiler(path_folder / "g++", "g++ 13")
    pretend_compiler(path_folder / "mine", "clang version 99")
    monkeypatch.setenv("ATTUNE_CXX", f"{path_folder / 'mine'} -pipe")
    toolchain = find_toolchain()
    assert toolchain.command == (str(path_folder / "mine"), "-pipe")
    assert toolchain.family == "clang"


@pytest.mark.usefixtures("path_folder")
def test_forced_compiler_that_does_not_run(monkeypatch):
    monkeypatch.setenv("ATTUNE_CXX", "no-such-compiler")
    with raises(ToolMissing, "cxx_does_not_run", "'no-such-compiler'"):
        find_toolchain()


def test_check_build_is_instrumented():
    toolchain = find_toolchain()
    assert "-fsanitize=thread" in compile_flags(toolchain, check=True)
    assert not any("sanitize=" in f for f in compile_flags(toolchain, check=False))
