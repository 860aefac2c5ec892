"""Reading a variant's `.cu` file as text: header, code without comments, barriers."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BARRIER = re.compile(r"\b__sync(?:threads|warp)\s*\([^()]*\)\s*;")


def header(source: str) -> list[str]:
    """Return the comment lines before the first other line, without `// `."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("// "):
            break
        lines.append(line.removeprefix("// "))
    return lines


def without_comments(source: str) -> str:
    """Return the code without comments; line numbers do not change."""
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), source)


def barriers(source: str) -> list[int]:
    """Return lines of `__syncthreads()` and `__syncwarp()`, from 1; comments that mention one do
    not count."""
    return [
        number
        for number, line in enumerate(without_comments(source).splitlines(), start=1)
        if _BARRIER.search(line)
    ]
