"""A TOML block inside a source file, read key by key. Every error names the file and its line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

from kernels.characters import hidden_in

MAX_BLOCK: Final = 20_000  # characters
MAX_INTEGER: Final = 2**31 - 1
MAX_SENTENCE: Final = 1_000  # characters

_TABLE_HEAD = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<keys>[\w.\s-]+?)\s*\]")
_KEY = re.compile(r"\s*(?P<keys>[\w-]+(?:\s*\.\s*[\w-]+)*)\s*=")

_T = TypeVar("_T", bound=str)
_KeyPath = tuple[str | int, ...]


class KernelDescriptionError(Exception):
    """An invalid description block. The message is a sentence that starts with `file.cu:line`."""

    def __init__(self, path: Path, line: int, sentence: str, *, code: str = "") -> None:
        plain = "".join(c if c.isprintable() else "?" for c in sentence)
        if len(plain) > MAX_SENTENCE:  # it may quote a long name
            plain = f"{plain[: MAX_SENTENCE - 1]}…"
        super().__init__(f"{path.name}:{max(1, line)}: {plain}")
        self.path = path
        self.line = max(1, line)
        self.code = code


def shown(value: object) -> str:
    """Return a value as messages show it, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python converts no int of more than 4,300 digits
        return "so large a number"
    return text if len(text) <= 60 else f"{text[:60]}…"


@dataclass(frozen=True)
class Place:
    """A block's file, and the line of each of its keys, for messages."""

    path: Path
    lines: dict[_KeyPath, int]

    def error(self, keys: _KeyPath, sentence: str, *, code: str = "") -> NoReturn:
        """Raise for a key, with its line or that of the nearest table around it that has a line of
        its own."""
        raise KernelDescriptionError(self.path, self.line(keys), sentence, code=code)

    def line(self, keys: _KeyPath) -> int:
        """Return the line of a key, or of the nearest table around it that has a line of its
        own."""
        while keys not in self.lines:
            keys = keys[:-1]
        return self.lines[keys]


@dataclass(frozen=True)
class Table:
    """One TOML table. Its methods return the value of a key, of the type in their name.

    All raise KernelDescriptionError for a value of another type, or a missing key without default.
    """

    place: Place
    values: dict[str, Any]
    keys: _KeyPath

    def error(self, key: str, sentence: str, *, code: str = "") -> NoReturn:
        """Raise for one key of the table; for the table itself if the key is empty."""
        end = "" if sentence.endswith("?") else "."
        if key:
            self.place.error((*self.keys, key), f"{key}: {sentence}{end}", code=code)
        self.place.error(self.keys, f"{sentence}{end}", code=code)

    def allow(self, *known: str) -> None:
        """Raise for the first key that is none of these."""
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
                self.place.error((*self.keys, key), f"there is no key `{key}` here: {hint}")

    def with_default(self, key: str, value: object) -> Table:
        """Return the table, with a value for this key if it has none."""
        return Table(self.place, {key: value, **self.values}, self.keys)

    def get(
        self, key: str, kind: type | tuple[type, ...], expected: str, default: Any = ...
    ) -> Any:
        value = self.values.get(key, default)
        if value is ...:
            self.error("", f"`{key}` is missing: it is {expected}")
        if value is default and key not in self.values:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.error(key, f"it is {expected}, not {shown(value)}")
        return value

    def string(self, key: str, default: Any = ...) -> str:
        return cast(str, self.get(key, str, "a text in quotes", default))

    def matching(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        if not pattern.fullmatch(text := self.string(key)):
            self.error(key, f"it is {expected}, not {shown(text)}")
        return text

    def choice(self, key: str, choices: Collection[_T], default: _T | None = None) -> _T:
        value = self.string(key, ... if default is None else default)
        if value not in choices:
            self.error(key, f"it is one of {', '.join(choices)}, not {shown(value)}")
        return cast(_T, value)

    def items(self, key: str, expected: str, default: Any = ...) -> list[Any]:
        return cast(list[Any], self.get(key, list, expected, default))

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0, ascending, with at least one."""
        values = self.items(key, "a list of whole numbers")
        if not values or not all(type(v) is int and 0 <= v <= MAX_INTEGER for v in values):
            self.error(key, f"it is a list of whole numbers, not {shown(values)}")
        if values != sorted(set(values)):
            self.error(key, "its values ascend")
        return tuple(values)

    def table(self, key: str, default: Any = ...) -> Table:
        return Table(self.place, self.get(key, dict, "a table", default), (*self.keys, key))

    def tables(self, key: str, default: Any = ...) -> Iterator[Table]:
        """Return a list of tables."""
        for number, values in enumerate(self.items(key, "a list of tables", default)):
            if not isinstance(values, dict):
                self.error(key, f"it is a list of tables, and holds {shown(values)}")
            yield Table(self.place, values, (*self.keys, key, number))


def load_block(path: Path, toml: str, first_line: int) -> Table:
    """Parse a block to its outermost table.

    Args:
        first_line: the file's line in which the TOML begins.

    Raises:
        KernelDescriptionError: it is not TOML.
    """
    if len(toml) > MAX_BLOCK:
        sentence = f"a description block has at most {MAX_BLOCK:,} characters."
        raise KernelDescriptionError(path, first_line, sentence)
    try:
        values = tomllib.loads(toml)
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = int(where[1]) if where and where[1] else toml.count("\n")
        sentence = str(error).replace(where[0], "") if where else str(error)
        raise KernelDescriptionError(path, first_line + line - 1, f"{sentence}.") from None
    except RecursionError:
        raise KernelDescriptionError(path, first_line, "its values nest too deeply.") from None
    block = Table(Place(path, _key_lines(toml, first_line)), values, ())
    _refuse_hidden(block.place, values, ())
    return block


def _refuse_hidden(place: Place, value: object, keys: _KeyPath) -> None:
    """Raise for a text or key with an invisible character, all of which TOML can escape."""
    if isinstance(value, str) and (character := hidden_in(value)):
        place.error(keys, f"a text holds the character {character}, which does not show.")
    if isinstance(value, list):
        for number, item in enumerate(value):
            _refuse_hidden(place, item, (*keys, number))
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_hidden(place, key, keys)
            _refuse_hidden(place, item, (*keys, key))


def _key_lines(toml: str, first_line: int) -> dict[_KeyPath, int]:
    """Return the line of each table and key that starts a line; `()` is the line before the
    block."""
    lines: dict[_KeyPath, int] = {(): first_line - 1}
    counts: dict[_KeyPath, int] = {}
    table: _KeyPath = ()
    for line, text in enumerate(toml.split("\n"), start=first_line):
        if head := _TABLE_HEAD.match(text):
            table = tuple(re.split(r"\s*\.\s*", head["keys"]))
            lines.setdefault(table, line)
            if head["open"] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, line)
        elif key := _KEY.match(text):
            lines.setdefault((*table, *re.split(r"\s*\.\s*", key["keys"])), line)
    return lines
