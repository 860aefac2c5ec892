"""Reading a variant's `.cu` file as text: header, code without comments, barriers."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BARRIER = re.compile(r"\b__sync(?:threads|warp)\s*\([^()]*\)\s*;")


def header(source: str) -> list[str]:
    """The comment lines before the first other line, without `// `."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("// "):
            break
        lines.append(line.removeprefix("// "))
    return lines


def without_comments(source: str) -> str:
    """The code alone; line numbers stay."""
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), source)


@dataclass(frozen=True)
class Barrier:
    """One `__syncthreads()` or `__syncwarp()` in a file."""

    line: int  # from 1
    text: str

    def removed_from(self, source: str) -> str:
        """The source without this barrier; line numbers stay."""
        lines = source.splitlines(keepends=True)
        lines[self.line - 1] = lines[self.line - 1].replace(self.text, ";", 1)
        return "".join(lines)


def barriers(source: str) -> list[Barrier]:
    """Every barrier of the file, in order; comments that mention one do not count."""
    return [
        Barrier(number, match[0])
        for number, line in enumerate(without_comments(source).splitlines(), start=1)
        for match in _BARRIER.finditer(line)
    ]
