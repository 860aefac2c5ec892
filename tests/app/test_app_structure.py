"""Import rules between the app's folders, so that a change of a page stays in its folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[2] / "app"
PAGES = {path.stem for path in (APP / "app_pages").glob("*.py")} - {"__init__"}
# Which folders of the app each folder may import; all others are folders of one page.
MAY_IMPORT = {"shared": {"shared"}, "evaluation": {"evaluation", "shared"}}


def imported(path: Path) -> set[str]:
    """Return the folders of the app that a module imports from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("app.")}


def modules() -> list[Path]:
    return sorted(path for path in APP.rglob("*.py") if path.parent != APP)


def test_every_folder_is_a_page_or_shared() -> None:
    folders = {path.relative_to(APP).parts[0] for path in modules()}
    assert folders == {"app_pages", *MAY_IMPORT, *PAGES}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(APP)))
def test_no_page_imports_another_pages_folder(path: Path) -> None:
    folder = path.relative_to(APP).parts[0]
    page = path.stem if folder == "app_pages" else folder
    assert imported(path) <= MAY_IMPORT.get(page, {page, "evaluation", "shared"})


@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages_contain_no_arithmetic(page: str) -> None:
    tree = ast.parse((APP / "app_pages" / f"{page}.py").read_text(encoding="utf-8"))
    operations = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Sub)
    assert not [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, operations)
    ]


def test_javascript_and_css_are_in_separate_files() -> None:
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert "export default function" not in text, path
        assert "data-testid" not in text, path
