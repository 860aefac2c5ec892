"""Imports: `kernels <- engine <- app`, no cycles, light imports, documented packages."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from engine.history.shipped import simulating_files

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {"app", "kernels", "engine", "tests", "sessions"} | {
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
}

# Allowed imports by top-level package.
MAY_IMPORT = {"kernels": {"kernels"}, "engine": {"engine", "kernels"}, "app": set(TOP_LEVEL)}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
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


def test_engine_imports_no_user_interface() -> None:
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

# Modules that evaluate and measure must not import what only the app and sessions need.
MEASURING_PATH = [
    "engine",
    "engine.pipeline.evaluate",
    "engine.cuda_source",
    "engine.cuda_on_host",
    "engine.backends.cuda",
    "engine.backends.sdpa",
    "engine.correctness",
    "engine.devices",
    "engine.devices.nvml",
    "engine.measure",
    "engine.model.kernel",
    "engine.model.occupancy",
    "engine.cli",
    "engine.search.sweep.run",
    "engine.search.autotune",
    "kernels.ladder",
]


def test_importing_the_measuring_path_imports_nothing_heavy() -> None:
    """On failure the first line of the output names the module with a heavy import."""
    code = (
        "import importlib, sys\n"
        f"for module in {MEASURING_PATH!r}:\n"
        "    importlib.import_module(module)\n"
        f"    heavy = [n for n in {HEAVY!r} if n in sys.modules]\n"
        "    if heavy: print(module, heavy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == ""


def imports_within(lazy: bool) -> dict[str, set[str]]:
    """Return the project's modules that each module imports; inside functions too if `lazy`."""
    names = {module_name(p): p for top in ("kernels", "engine", "app") for p in modules(top)}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for node in statements(parsed(path).body, lazy):
            if isinstance(node, ast.Import):
                wanted = [(alias.name, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
            else:
                continue
            found = {full if full in names else base for full, base in wanted} & set(names)
            graph[name] |= found
            if not lazy:  # an import from another package runs that package's __init__ first
                graph[name] |= {
                    package
                    for module in found
                    for package in packages_of(module)
                    if package in names and not in_package(name, (package,))
                }
    return graph


def packages_of(module: str) -> list[str]:
    """Return the packages of a module: a.b and a for `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(body: list[ast.stmt], lazy: bool) -> Iterator[ast.stmt]:
    """Yield statements run at import, also those in functions if `lazy`, never for types only."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        yield node
        yield from statements(
            [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)], lazy
        )
        for handler in getattr(node, "handlers", ()):
            yield from statements(handler.body, lazy)


def package_of(module: str) -> str:
    """Return the package of a module; a file directly in `engine/` counts as a package."""
    return ".".join(module.split(".")[:2])


def cycle_in(graph: dict[str, set[str]]) -> tuple[str, ...]:
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return tuple(error.args[1])
    return ()


@pytest.mark.parametrize("lazy", [False, True], ids=["at import", "in functions too"])
def test_no_import_cycle_between_files_or_packages(lazy: bool) -> None:
    files = imports_within(lazy)
    assert len(files) > 100
    assert cycle_in(files) == ()
    assert cycle_in(packages_within(files)) == ()


def packages_within(files: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the other packages that the files of each package import."""
    packages: dict[str, set[str]] = {}
    for name, wanted in files.items():
        packages.setdefault(package_of(name), set()).update(map(package_of, wanted))
    return {package: wanted - {package} for package, wanted in packages.items()}


ENTRY_POINTS = {"engine.__main__", "engine.testing"}


def engine_layers() -> dict[str, int]:
    """Return package → layer: one above the highest package that it imports, inside functions
    too. `engine` and `engine.testing`, which give the public names, and `python -m
    engine` are entry points and not counted.
    """
    packages = packages_within(imports_within(lazy=True))
    layers: dict[str, int] = {}
    for package in TopologicalSorter(packages).static_order():
        if package.startswith("engine.") and package not in ENTRY_POINTS:
            layers[package] = 1 + max((layers.get(w, 0) for w in packages[package]), default=0)
    return layers


MAX_LAYERS = 9


def test_few_import_layers() -> None:
    layers = engine_layers()
    assert max(layers.values()) <= MAX_LAYERS, layers


# Libraries without imports of attention and its kernels, and the packages each may import.
LIBRARIES = {
    "engine.cuda_source": {"engine.base"},
    "engine.cuda_on_host": {"engine.base", "engine.cuda_source"},
    "engine.machine_code": {
        "engine.base",
        "engine.cuda_source",
        "engine.devices.spec",
    },
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_does_not_import_attention(library: str) -> None:
    allowed = (library, *LIBRARIES[library])
    graph = imports_within(lazy=True)
    of_library = {module for module in graph if in_package(module, (library,))}
    for module in of_library:
        assert {w for w in graph[module] if not in_package(w, allowed)} == set(), module
    # Of `kernels`, `engine.base` imports the escapes of invisible characters.
    others = {"engine.base", "engine.devices", "kernels.characters", *LIBRARIES}
    assert {m for m in reached(of_library, graph) if not in_package(m, others)} == set()


def reached(modules: Iterable[str], graph: dict[str, set[str]]) -> set[str]:
    """Return the modules and all that they import, directly or not."""
    found, pending = set[str](), list(modules)
    while pending:
        module = pending.pop()
        if module not in found:
            found.add(module)
            pending += graph[module]
    return found


def in_package(module: str, packages: Iterable[str]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_have_a_readme(library: str) -> None:
    assert (ROOT / library.replace(".", "/") / "README.md").is_file()


def test_an_import_cycle_is_found() -> None:
    assert set(cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
    assert cycle_in({"a": {"b"}, "b": {"c"}}) == ()


@pytest.mark.parametrize(
    "package",
    [
        module_name(p)
        for p in modules("engine")
        if p.name == "__init__.py" and p.parent.name != "engine"
    ],
)
def test_packages_have_a_docstring_and_their_public_names(package: str) -> None:
    """A package has a docstring, and its public names exist."""
    shown = importlib.import_module(package)
    assert shown.__doc__
    for name in getattr(shown, "__all__", ()):
        assert getattr(shown, name) is not None


def test_the_command_line_starts_lightly() -> None:
    """Heavy modules are not imported at start (0.4 s on an idle machine)."""
    code = "import sys, engine.cli\nprint(' '.join(n for n in sys.argv[1:] if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code, *HEAVY, "scipy", "pandas"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_the_top_level_of_engine_is_fixed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split("\n")
    tops = {name.split("/")[0] for name in listed if name}
    assert {t for t in tops if not t.startswith(".")} <= TOP_LEVEL


def test_frames_of_the_app_come_from_tables_and_the_engine() -> None:
    code = list((ROOT / "app").rglob("*.py"))
    assert code
    assert [str(p.relative_to(ROOT)) for p in code if "DataFrame(" in p.read_text()] == []


def test_no_file_is_longer_than_600_lines() -> None:
    """A longer file holds more than one idea; only a kernel is one file whatever its length."""
    files = [path for top in ("app", "engine", "kernels") for path in (ROOT / top).rglob("*.*")]
    code = [path for path in files if path.suffix in {".py", ".cpp", ".h", ".cuh"}]
    assert {path.suffix for path in code} == {".py", ".cpp", ".h", ".cuh"}
    assert [path for path in code if len(path.read_text().splitlines()) > 600] == []


def test_simulation_does_not_import_explanations() -> None:
    """A module that affects simulated figures imports none that is left out of their digest."""
    graph = imports_within(lazy=True)
    asked, found = ["engine.history.simulation", "engine.history.persistent"], set[str]()
    while asked:
        module = asked.pop()
        if module not in found and module.startswith(("engine.machine_code", "engine.history")):
            found.add(module)
            asked += graph[module]
    digested = {module_name(path) for path in simulating_files() if path.suffix == ".py"}
    of_code = {module for module in found if module.startswith("engine.machine_code.")}
    assert "engine.machine_code.emulation" in of_code
    assert of_code <= digested
    native, included, sources = ROOT / "engine/machine_code/native", set[str](), ["emulator.cpp"]
    while sources:
        source = (native / sources.pop()).read_text()
        text = re.sub(r"(?ms)^#if EXECUTES$.*?^#(?:endif|else)$", "", source)
        new = set(re.findall(r'(?m)^#include "(.+)"$', text)) - included
        included |= new
        sources += new
    assert {"decode.h", "modifiers.h", "lanes.h"} <= included
    assert included <= {path.name for path in simulating_files()}
