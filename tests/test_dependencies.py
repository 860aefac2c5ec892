"""Runtime dependencies have upper bounds and are locked by name and version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUNTIME = [
    *PROJECT["dependencies"],
    *(line for name, lines in EXTRAS.items() if name != "test" for line in lines),
]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def locked() -> dict[str, str]:
    lines = (ROOT / ".ci" / "versions.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in pinned}


@pytest.mark.parametrize("requirement", RUNTIME, ids=name_of)
def test_dependencies_exclude_the_next_major_release(requirement: str) -> None:
    assert re.search(r"<\d|==\d+\.\*", requirement), requirement


def test_the_lock_has_only_names_and_versions() -> None:
    for line in (ROOT / ".ci" / "versions.txt").read_text().splitlines()[1:]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


def test_every_dependency_of_a_test_run_is_locked() -> None:
    wanted = {name_of(r) for r in [*PROJECT["dependencies"], *EXTRAS["cuda13"], *EXTRAS["test"]]}
    assert wanted <= set(locked())
