"""Links, files, commands and packages named in the documents exist."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from engine.base.errors import AttuneError
from engine.cli import main
from engine.cli.command_line import parser

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    path
    for top in ("", ".agents", ".github", "app", "engine", "kernels", "tests", "sessions")
    for path in sorted((ROOT / top).glob("*.md" if top == "" else "**/*.md"))
]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w./-]+\.(?:py|cu|cuh|toml|json|cpp|md)")
_ELSEWHERE = {
    "before.json",
    "after.json",
    "one.json",
    "my_kernel.attune.toml",
    "attune-gate.toml",
    "FILE.cu",
    "file.cu",
}

names = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.+)$", text(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def fenced(path: Path) -> str:
    return "\n".join(text(path).split("```")[1::2])


def test_documents_are_found() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    assert ROOT / "engine/machine_code/README.md" in DOCUMENTS


@names
def test_links_have_a_target(path: Path) -> None:
    for link in _LINK.findall(text(path)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"{link} is not there"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@names
def test_named_files_exist(path: Path) -> None:
    for code in _CODE.findall(text(path)):
        if not _FILE.fullmatch(code) or code in _ELSEWHERE or "vNN" in code:
            continue
        places = [ROOT, path.parent, ROOT / "tests/bench"]
        assert any((place / code).exists() for place in places), f"{code} is not there"


def commands(path: Path) -> list[str]:
    """Yield command lines in code blocks, and in table columns whose heading starts the command."""
    shown = fenced(path).replace("\\\n", " ")
    # Without comments, pipes to other programs, and optional parts.
    rest = r"((?:'[^']*'|\"[^\"]*\"|[^'\"#&\[\n])+)"
    lines = re.findall(rf"(?:^ *|^ *\$ |&& )attune {rest}", shown, re.MULTILINE)
    lines += re.findall(rf"python -m engine {rest}", shown)
    for table in re.findall(r"`attune …` \|\n(.+?)\n\n", text(path), re.DOTALL):
        lines += re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)
    return lines


@names
def test_commands_are_understood(path: Path) -> None:
    for line in commands(path):
        given = shlex.split(line.replace("path/to/my_kernel.cu", "v01"))
        try:
            parser(only=given[0]).parse_args(given)
        except AttuneError as error:
            pytest.fail(f"{line} is not understood: {error}")


def test_commands_are_found() -> None:
    assert len(commands(ROOT / "engine/cli/README.md")) >= 26
    assert "auto --gpu L4 -H 8 -S 128" in commands(ROOT / "README.md")
    assert "app" in map(str.strip, commands(ROOT / "README.md"))


def test_commands_in_prose_are_valid() -> None:
    """Whole commands inline in prose, such as `attune app`, are valid."""
    shown = "\n".join(text(path) for path in DOCUMENTS)
    words = set(re.findall(r"`attune ([a-z][a-z-]+)", shown))
    assert len(words) > 5
    assert words - set(parser().commands) == set()


@pytest.mark.slow
def test_first_commands_of_the_readme_print_the_quoted_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commands of the README print the quoted output (installation: test_wheel.py)."""
    monkeypatch.setenv("COLUMNS", "600")
    first = text(ROOT / "README.md").split("```")[1]
    shown = [part.splitlines() for part in re.split(r"^\$ attune ", first, flags=re.MULTILINE)[1:]]
    printing = [(command, lines) for command, *lines in shown if lines]
    assert [command.split()[0] for command, _ in printing] == [
        "evaluate",
        "auto",
        "recommend-batch",
    ]
    for command, lines in printing:
        assert main(shlex.split(command)) == 0
        printed = " ".join(capsys.readouterr().out.split())
        for part in "…".join(lines).split("…"):
            assert " ".join(part.split()) in printed


@pytest.mark.slow
def test_python_of_the_readme_runs() -> None:
    done = doctest.testfile(str(ROOT / "README.md"), module_relative=False, encoding="utf-8")
    assert done.attempted >= 5
    assert done.failed == 0


# Runs the examples of a README and prints the packages they imported.
_ALONE = """
import doctest, sys
done = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8")
print(done.attempted, done.failed)
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("engine.")}))
print(*sorted(name for name in sys.modules if name.startswith("kernels.")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["cuda_source", "cuda_on_host", "machine_code"])
def test_examples_of_a_library_import_no_attention(library: str, tmp_path: Path) -> None:
    readme = ROOT / "engine" / library / "README.md"
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, str(readme)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    *shown, counts, rooms, of_kernels = done.stdout.splitlines()
    assert counts.endswith(" 0"), (shown, done.stderr)
    assert int(counts.split()[0]) >= 5
    assert set(rooms.split()) <= {"base", "devices", "cuda_source", "cuda_on_host", "machine_code"}
    assert of_kernels in ("", "kernels.characters")


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_package_tables_name_every_package(path: Path) -> None:
    rooms = {p.parent.name for p in (ROOT / "engine").glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in text(path)} == set()
