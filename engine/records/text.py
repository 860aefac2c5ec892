"""Text as a snapshot may hold it: bounded, and with nothing in it that acts on a reader's screen.

Control characters (terminal escapes) and bidirectional overrides (source that reads differently
from what it compiles to) are refused on reading and taken out on writing. HTML and Markdown are
ordinary characters here; whoever shows a text escapes it.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import StringConstraints

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_FORBIDDEN_IN_LINES = f"\\x00-\\x08\\x0b\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029{_BIDI}"
_FORBIDDEN_IN_LINE = f"\\x00-\\x1f\\x7f-\\x9f\u2028\u2029{_BIDI}"

MAX_LINE = 400
MAX_SENTENCE = 2_000
MAX_NOTES = 100_000
MAX_LOG = 65_536
MAX_SOURCE = 1_000_000

_LINE_PATTERN = f"^[^{_FORBIDDEN_IN_LINE}]*$"
_LINES_PATTERN = f"^[^{_FORBIDDEN_IN_LINES}]*$"

Line: TypeAlias = Annotated[
    str, StringConstraints(max_length=MAX_LINE, pattern=_LINE_PATTERN, strict=True)
]
Sentence: TypeAlias = Annotated[
    str, StringConstraints(max_length=MAX_SENTENCE, pattern=_LINES_PATTERN, strict=True)
]
Notes: TypeAlias = Annotated[
    str, StringConstraints(max_length=MAX_NOTES, pattern=_LINES_PATTERN, strict=True)
]
Log: TypeAlias = Annotated[
    str, StringConstraints(max_length=MAX_LOG, pattern=_LINES_PATTERN, strict=True)
]
SourceText: TypeAlias = Annotated[
    str, StringConstraints(max_length=MAX_SOURCE, pattern=_LINES_PATTERN, strict=True)
]
Sha256: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", strict=True)]

_SURROGATES = "\ud800-\udfff"
_IN_LINES = re.compile(f"[{_FORBIDDEN_IN_LINES}{_SURROGATES}]")
_IN_LINE = re.compile(f"[{_FORBIDDEN_IN_LINE}{_SURROGATES}]+")


def clean_line(text: str, limit: int = MAX_LINE) -> str:
    """`text` as one line a snapshot may hold: what is forbidden becomes a space."""
    line = _IN_LINE.sub(" ", text).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clean_lines(text: str, limit: int) -> str:
    """`text` with forbidden characters taken out; a middle part is cut where it is too long."""
    lines = _IN_LINES.sub("", text)
    if len(lines) <= limit:
        return lines
    cut = f"\n… {len(lines) - limit:,} characters cut here …\n"
    keep = limit - len(cut) - 8
    head = keep // 2
    return lines[:head] + cut + lines[len(lines) - (keep - head) :]
