"""The words of errors that have a code: in `words.json`, and in no test.

    python tests/words.py             # prints the codes whose words have changed
    python tests/words.py --renew     # writes words.json

Tests ask for codes (`raises`), so that a rewording changes the sentence and one file. The words are
read out of the source: `{…}` stands for what is filled in.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORDS = Path(__file__).with_name("words.json")


@contextmanager
def raises(kind: type[Exception], code: str, *facts: str) -> Iterator[Any]:
    """An error of this kind and with this code, whose sentence names the facts: what is filled in,
    a name or number or place."""
    import pytest

    with pytest.raises(kind) as caught:
        yield caught
    assert getattr(caught.value, "code", "") == code, f"{caught.value!r} is not {code}"
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def says(text: str, code: str, *facts: str) -> bool:
    """Whether a text, as a command prints it, holds the words of this code, and the facts."""
    flat = " ".join(text.split())
    words = " ".join(json.loads(WORDS.read_text(encoding="utf-8"))[code].split())
    parts = map(re.escape, words.split("{…}"))
    return re.search(".*?".join(parts), flat) is not None and all(fact in flat for fact in facts)


def coded() -> Iterator[tuple[str, str]]:
    """Code and words of every error in the source that has a code."""
    for top in ("app", "engine", "kernels"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args:
                    codes = [k.value for k in node.keywords if k.arg == "code"]
                    if codes and isinstance(codes[0], ast.Constant):
                        sentence = next(filter(_is_sentence, node.args), node.args[0])
                        yield str(codes[0].value), _words(sentence)


def _is_sentence(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or " " in str(getattr(node, "value", ""))


def _words(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "{…}"


def renewed() -> dict[str, str]:
    return dict(sorted(coded()))


def main(argv: list[str]) -> int:
    before = json.loads(WORDS.read_text(encoding="utf-8")) if WORDS.exists() else {}
    now = renewed()
    for code in sorted(before.keys() | now.keys()):
        if before.get(code) != now.get(code):
            print(f"{code}:\n  - {before.get(code, '')}\n  + {now.get(code, '')}")
    if "--renew" in argv:
        WORDS.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    return int(before != now)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
