"""Names for the messages that tests check, with their words in `words.json`.

    python tests/words.py             # prints names whose words have changed
    python tests/words.py --renew     # writes words.json

Tests check names (`raises`, `says`), so that a rewording changes the message and one file. The
words are those of the source, with `{…}` for values that are filled in. The name of an error is its
code; other messages are named in `words.json`, and after a rewording get the most similar words of
the source.
"""

from __future__ import annotations

import ast
import difflib
import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORDS = Path(__file__).with_name("words.json")
_NEAR = 0.5  # similarity by difflib from which a text may be the other one reworded
# C++: adjacent string literals, and the fields of printf.
_LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s+"(?:[^"\\\n]|\\.)*")*')
# The sentence of a constraint in a kernel's description (TOML).
_CONSTRAINT = re.compile(r'^sentence = (?:"""(.*?)"""|"(.*?)"$)', re.S | re.M)
_FIELD_OF_TEMPLATE = re.compile(r"\{\{.*?\}\}")
_FIELD = re.compile(r"\{[^{}]+\}")
_FIELD_OF_FIELD = re.compile(r"\{\{…\}:[^{}]*\}")
_FILLED_IN = re.compile(r"%[-+ #0]*[\d.*]*(?:hh|h|ll|l|z)?[diouxXeEfgGscp]|\{\w+\}")


@contextmanager
def raises(kind: type[BaseException], name: str, *facts: str) -> Iterator[Any]:
    """Check for an error of this kind and code (without a code: with the words of this name), whose
    message contains the facts: names, numbers or places that are filled in."""
    import pytest

    with pytest.raises(kind) as caught:
        yield caught
    if code := getattr(caught.value, "code", ""):
        assert code == name, f"{caught.value!r} is not {name}"
    else:
        assert says(str(caught.value), name), f"{caught.value!r} does not say {name}"
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def says(text: str | Iterable[str], name: str, *facts: str) -> bool:
    """Return True if a text, or one of several, has the words of this name and the facts as whole
    words."""
    if not isinstance(text, str):
        return any(says(each, name, *facts) for each in text)
    flat = " ".join(text.split())
    # A semicolon stands between parts; after the last one is a full stop.
    words = " ".join(_on_file()[name].split()).removesuffix(";")
    pattern = ".*?".join(map(re.escape, words.split("{…}")))
    if pattern[:1].islower():  # a sentence may begin with these words
        pattern = f"[{pattern[0]}{pattern[0].upper()}]{pattern[1:]}"
    return re.search(pattern, flat) is not None and all(_has(flat, f) for f in facts)


def is_name(text: str) -> bool:
    """Return True if the text is the name of a message."""
    return "_" in text and text in _on_file()


def _has(text: str, fact: str) -> bool:
    before, after = (
        r"(?<!\w)" if fact[:1].isalnum() else "",
        r"(?!\w)" if fact[-1:].isalnum() else "",
    )
    return re.search(before + re.escape(fact) + after, text) is not None


@functools.cache
def _on_file() -> dict[str, str]:
    found: dict[str, str] = json.loads(WORDS.read_text(encoding="utf-8"))
    return found


@functools.cache
def _source() -> tuple[list[tuple[str, str]], set[str]]:
    """Return (code, words) of every error with a code, and the words of all strings of the source,
    Python, C++ and the lines of templates; of an f-string as a whole."""
    codes, texts = [], set()
    for path in (p for top in ("app", "engine", "kernels") for p in (ROOT / top).rglob("*.py")):
        parts = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # parents come first
            if isinstance(node, ast.Expr):
                parts.add(id(node.value))  # a docstring
            elif isinstance(node, ast.JoinedStr):
                parts |= {id(part) for part in node.values}
                texts.add(_words(node))
            elif isinstance(node, ast.Constant):
                if id(node) not in parts:
                    texts.add(_words(node))
            elif isinstance(node, ast.Call) and node.args:
                code = next((k.value for k in node.keywords if k.arg == "code"), None)
                if isinstance(code, ast.Constant):
                    sentence = next(filter(_is_sentence, node.args), node.args[0])
                    codes.append((str(code.value), _words(sentence)))
    for path in (p for end in ("cpp", "h") for p in (ROOT / "engine").rglob(f"*.{end}")):
        for literals in _LITERALS.findall(path.read_text(encoding="utf-8")):
            texts.add(_FILLED_IN.sub("{…}", re.sub(r'"\s+"', "", literals)[1:-1]))
    for path in (ROOT / "engine").glob("*/templates/*.md"):
        for line in path.read_text(encoding="utf-8").splitlines():
            texts.add(_FIELD_OF_TEMPLATE.sub("{…}", line.lstrip("# ")))
    for path in (ROOT / "kernels").glob("*.cu"):
        for long, short in _CONSTRAINT.findall(path.read_text(encoding="utf-8")):
            texts.add(_FIELD.sub("{…}", " ".join((long or short).replace("\\\n", "").split())))
    return codes, texts


def coded() -> list[tuple[str, str]]:
    """Return (code, words) of every error in the source that has a code."""
    return _source()[0]


def _is_sentence(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or " " in str(getattr(node, "value", ""))


def _words(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        # `{{name}:,}` is a field of a text that is formatted again.
        return _FIELD_OF_FIELD.sub("{…}", "".join(_words(part) for part in node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "{…}"


def renewed(before: dict[str, str]) -> dict[str, str]:
    """Return the names with the words of the present source, without messages that are gone."""
    codes, there = _source()
    now = dict(codes)
    for name, words in before.items():
        if name not in now and _is_asked_for(name):
            near = [words] if words in there else difflib.get_close_matches(words, there, 1, _NEAR)
            if near:
                now[name] = near[0]
    return dict(sorted(now.items()))


@functools.cache
def _tests() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))


def _is_asked_for(name: str) -> bool:
    return f'"{name}"' in _tests()


def main(argv: list[str]) -> int:
    before = _on_file()
    now = renewed(before)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            print(f"{name}:\n  - {before.get(name, '')}\n  + {now.get(name, '')}")
    if "--renew" in argv:
        WORDS.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    return int(before != now)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
