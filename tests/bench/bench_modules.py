"""Count the modules that one evaluation uses: `python tests/bench/bench_modules.py [CHECKOUT]`.

Prints lines and modules of Python by package, the packages of the engine by their layer
(as in `tests/test_architecture.py`), and the modules entered (a function of theirs was called) by
one preview, as at every step of a slider, and by one evaluation on the CPU backend, both with every
compile in the cache. Name another checkout to count there, for instance before a change.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import test_architecture  # noqa: E402

# Runs in the checkout: a profile hook records the file of every Python function that is called.
_PROBE = """
import importlib, sys
from pathlib import Path

def module(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name):
                raise
    raise SystemExit(f"none of {names} is here")

root = Path.cwd()
evaluating = module("engine.pipeline.evaluate", "engine.evaluate")
previewing = module("engine.pipeline.request", "engine.pipeline.preview", "engine.preview")
request_of = module("engine.pipeline.request", "engine.request").EvaluationRequest
problem_of = module("engine.problem", "engine.attention.problem").Problem

def entered(act):
    files = set()
    def note(frame, event, arg):
        if event == "call":
            files.add(frame.f_code.co_filename)
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    inside = (Path(f) for f in files if f.endswith(".py") and Path(f).is_relative_to(root))
    return sorted(str(f.relative_to(root)) for f in inside if "site-packages" not in f.parts)

request = request_of("v05", problem_of(1, 2, 203, 64), gpu="L4", backend="cpu")
with evaluating.Evaluator() as evaluator:
    evaluator.evaluate(request)
    for what, act in (
        ("preview", lambda: previewing.preview(request)),
        ("evaluation", lambda: evaluator.evaluate(request)),
    ):
        files = entered(act)
        of_engine = sum(f.startswith("engine/") for f in files)
        print(f"{what}: {len(files)} modules entered, {of_engine} of them the engine's")
        print("    " + ", ".join(f.removeprefix("engine/").removesuffix(".py") for f in files))
"""


def sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Return (lines, modules with code) of each package."""
    counted: dict[str, tuple[int, int]] = {}
    for top in ("kernels", "engine", "app", "tests"):
        for path in sorted((root / top).rglob("*.py")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            parts = path.relative_to(root).parts
            for package in {top, "/".join(parts[:2]) if len(parts) > 2 and top != "tests" else top}:
                total, modules = counted.get(package, (0, 0))
                counted[package] = (total + lines, modules + (lines > 0))
    return counted


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    for package, (lines, modules) in sorted(sizes(root).items()):
        print(f"{package:<24}{lines:8,} lines{modules:6} modules")
    test_architecture.ROOT = root
    by_layer: dict[int, list[str]] = {}
    for package, layer in sorted(test_architecture.engine_layers().items()):
        by_layer.setdefault(layer, []).append(package.removeprefix("engine."))
    for layer, packages in sorted(by_layer.items(), reverse=True):
        print(f"layer {layer:2}: {', '.join(packages)}")
    print(flush=True)
    subprocess.run([sys.executable, "-c", _PROBE], cwd=root, check=True)


if __name__ == "__main__":
    main()
