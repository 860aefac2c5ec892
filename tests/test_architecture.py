"""The house: `kernels <- engine <- app`, light imports, small modules, names from the one list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {"app", "kernels", "engine", "tests", "sessions", "pyproject.toml", "README.md"}

# Who may import whom, by top-level package.
MAY_IMPORT = {"kernels": {"kernels"}, "engine": {"engine", "kernels"}, "app": set(TOP_LEVEL)}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


@pytest.mark.parametrize("package", ["kernels", "engine"])
def test_imports_point_one_way(package: str) -> None:
    paths = modules(package)
    assert paths
    for path in paths:
        for name in imported_names(path):
            top = name.split(".")[0]
            if top in {"app", "engine", "kernels", "tests"}:
                assert top in MAY_IMPORT[package], f"{path.relative_to(ROOT)} imports {name}"


def test_engine_knows_no_screen() -> None:
    for path in modules("engine") + modules("kernels"):
        assert not {n for n in imported_names(path) if n.split(".")[0] == "streamlit"}, path


HEAVY = [
    "cupy",
    "torch",
    "streamlit",
    "plotly",
    "pydantic",
    "platformdirs",
    "rich",
    "fsspec",
    "jinja2",
]

# What evaluates and measures without what only the app and the sessions need.
MEASURING_PATH = [
    "engine",
    "engine.pipeline.evaluate",
    "engine.pipeline.preview",
    "engine.compile",
    "engine.backends.cpu",
    "engine.backends.cuda",
    "engine.backends.sdpa",
    "engine.correctness",
    "engine.devices",
    "engine.devices.detect",
    "engine.measure",
    "engine.model.estimate",
    "engine.model.occupancy",
    "engine.cli",
    "engine.search.sweep.run",
    "engine.search.autotune",
    "kernels.ladder",
]


@pytest.mark.parametrize("module", MEASURING_PATH)
def test_importing_the_measuring_path_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}\nprint(' '.join(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == ""


def test_modules_stay_small() -> None:
    for package in ("app", "engine", "kernels", "tests"):
        for path in modules(package):
            lines = len(path.read_text().splitlines())
            assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines: two ideas?"


def test_the_top_level_stays() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split("\n")
    tops = {name.split("/")[0] for name in listed if name}
    assert {t for t in tops if not t.startswith(".")} <= TOP_LEVEL
