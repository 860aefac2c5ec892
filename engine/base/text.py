"""Text as a snapshot may hold it: bounded, and with nothing in it that acts on a reader's screen.

Control characters (terminal escapes) and bidirectional overrides (source that reads differently
from what it compiles to) are refused on reading and taken out on writing; in sources, which a
person agrees to run, all that would not show (`kernels.characters`). HTML and Markdown are ordinary
characters here; whoever shows a text escapes it, and the command line writes out what would not
show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from kernels.characters import BIDIRECTIONAL, HIDDEN

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

_FORBIDDEN_IN_LINES = f"\\x00-\\x08\\x0b\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029{BIDIRECTIONAL}"
_FORBIDDEN_IN_LINE = f"\\x00-\\x1f\\x7f-\\x9f\u2028\u2029{BIDIRECTIONAL}"

MAX_LINE = 400
MAX_SENTENCE = 2_000
MAX_NOTES = 100_000
MAX_LOG = 65_536
MAX_SOURCE = 1_000_000

_SURROGATES = "\ud800-\udfff"
# Form feeds and lone carriage returns are read in old files and no longer written.
_IN_LINES = re.compile(f"[{_FORBIDDEN_IN_LINES}\\x0c{_SURROGATES}]|\r(?!\n)")
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


@dataclass(frozen=True, slots=True)
class Text:
    """Annotation: the form of a text in a file, and what makes any text fit it on writing."""

    pattern: str
    max_length: int | None = None
    clean: Callable[[str], str] | None = None
    check: Callable[[str], object] | None = None  # ValueError where the form alone does not tell

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        schema = core_schema.str_schema(
            pattern=self.pattern, max_length=self.max_length, strict=True
        )
        if self.clean is not None:
            schema["serialization"] = core_schema.plain_serializer_function_ser_schema(
                self.clean, return_schema=core_schema.str_schema()
            )
        if self.check is None:
            return schema
        return core_schema.no_info_after_validator_function(self._checked, schema)

    def _checked(self, text: str) -> str:
        assert self.check is not None
        self.check(text)
        return text


def _lines(limit: int) -> Text:
    return Text(f"^[^{_FORBIDDEN_IN_LINES}]*$", limit, lambda text: clean_lines(text, limit))


def _real_date(text: str) -> None:
    if text:
        datetime.fromisoformat(text)  # refuses 31 February


_LINE_PATTERN = f"[^{_FORBIDDEN_IN_LINE}]"
_UTC = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]{1,6})?(Z|\+00:00)"

Line: TypeAlias = Annotated[str, Text(f"^{_LINE_PATTERN}*$", MAX_LINE, clean_line)]
Name: TypeAlias = Annotated[str, Text(f"^{_LINE_PATTERN}+$", MAX_LINE, clean_line)]  # not empty
Sentence: TypeAlias = Annotated[str, _lines(MAX_SENTENCE)]
Notes: TypeAlias = Annotated[str, _lines(MAX_NOTES)]
Log: TypeAlias = Annotated[str, _lines(MAX_LOG)]
SourceText: TypeAlias = Annotated[str, Text(f"^(?:[^{HIDDEN}\\r]|\\r\\n)*$", MAX_SOURCE)]
Identifier: TypeAlias = Annotated[str, Text(r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Sha256: TypeAlias = Annotated[str, Text(r"^[0-9a-f]{64}$")]
Sha256OrEmpty: TypeAlias = Annotated[str, Text(r"^([0-9a-f]{64})?$")]
# ISO 8601 in UTC, to the second or finer.
Time: TypeAlias = Annotated[str, Text(f"^{_UTC}$", check=_real_date)]
# The same, and empty where the time is not known.
TimeOrEmpty: TypeAlias = Annotated[str, Text(f"^({_UTC})?$", check=_real_date)]
