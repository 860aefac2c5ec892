"""A validation failure as one sentence: which file, which place, what is wrong.

Nothing of the file's own text is repeated, apart from field names that look like names: the
sentence is safe wherever it is shown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

_SAFE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_UNSAFE_IN_FILE_NAME = re.compile(r"[^A-Za-z0-9._+=@, -]")

_PHRASES = {
    "missing": "is missing",
    "extra_forbidden": "is a field this version does not know",
    "string_type": "must be text",
    "string_too_long": "must have at most {max_length:,} characters",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "has characters or a form that are not allowed there",
    "string_unicode": "is not valid Unicode text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "unexpected_keyword_argument": "is a field this version does not know",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
    "greater_than": "must be greater than {gt:,}",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than_equal": "must be at most {le:,}",
    "too_long": "must have at most {max_length:,} entries",
    "too_short": "must have at least {min_length:,} entries",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "dataclass_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "must be null",
}


def file_label(name: str) -> str:
    """A file's name as a sentence may show it: its last part, without characters that act."""
    last = re.split(r"[\\/]", name)[-1]
    label = _UNSAFE_IN_FILE_NAME.sub("_", last).strip(" .")
    return label[:80] or "the file"


def first_problem(error: ValidationError, at: str = "") -> str:
    """`evaluations[3].latency.median_us must be a number` for the first thing that is wrong.

    `at` is the place of the validated value within the file; empty for all of it.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    loc = (at, *first["loc"]) if at else first["loc"]
    phrase = _phrase(first["type"], first.get("ctx", {}))
    return f"{place_of(loc)} {phrase}" if loc else phrase


def place_of(loc: tuple[int | str, ...]) -> str:
    """A JSON path from pydantic's location; unreadable names become `?`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]":
            path += " (a name in it)"
        else:
            name = part if _SAFE_NAME.fullmatch(part) else "?"
            path += f".{name}" if path else name
    return path


def _phrase(kind: str, ctx: dict[str, Any]) -> str:
    if kind == "value_error":  # raised by our own validators, in our own words
        return f"is wrong: {str(ctx['error']).rstrip('.')}"
    template = _PHRASES.get(kind)
    return template.format(**ctx) if template else "is not valid"
