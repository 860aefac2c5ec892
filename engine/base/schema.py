"""Schema of stored dataclasses: annotations for bounds and text formats, the base class,
conversion.

The dataclasses are their own schema: pydantic reads their annotations when something is first
encoded or decoded. Importing this module does not import pydantic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar, cast

from annotated_types import Ge, Le

from engine.base.errors import InvalidProblem, SnapshotError
from engine.base.files import MAX_LOG, MAX_SOURCE
from kernels.characters import BIDIRECTIONAL, HIDDEN

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
    from pydantic_core import PydanticCustomError
    from pydantic_core.core_schema import SerializationInfo


MAX_COUNT = 2**63 - 1


class NanAsNull:
    """Annotation of a float that may be NaN: NaN and infinity are null in a file, and null is read
    as NaN."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            lambda value: math.nan if value is None else value,
            core_schema.nullable_schema(handler(source)),
        )


Count: TypeAlias = Annotated[int, Ge(0), Le(MAX_COUNT)]
Integer: TypeAlias = Annotated[int, Ge(-MAX_COUNT - 1), Le(MAX_COUNT)]
NotNegative: TypeAlias = Annotated[float, Ge(0), Le(1e18)]
Microseconds: TypeAlias = Annotated[float, Ge(1e-6), Le(1e15)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
MAX_ERROR = 1e39  # above the difference of any two finite BF16 numbers
ErrorSize: TypeAlias = Annotated[float, Ge(0), Le(MAX_ERROR), NanAsNull()]
Tolerance: TypeAlias = Annotated[float, Ge(1e-12), Le(MAX_ERROR), NanAsNull()]
# Bounds of one SM, above those of any GPU, so that derived figures stay within int64.
PerSm: TypeAlias = Annotated[int, Ge(0), Le(4096)]
SmCount: TypeAlias = Annotated[int, Ge(0), Le(65_536)]
# CUDA's own limits.
ThreadsPerCta: TypeAlias = Annotated[int, Ge(0), Le(1024)]
RegistersPerThread: TypeAlias = Annotated[int, Ge(0), Le(255)]


# Text in snapshots: bounded, and without characters that control a reader's screen.
#
# Control characters (terminal escapes) and bidirectional overrides (which make a source look
# different from what is compiled) are rejected on reading and removed on writing; in sources, which
# a user agrees to run, all invisible characters are (`kernels.characters`). HTML and Markdown are
# ordinary text here: code that displays a text escapes it, and the command line shows invisible
# characters as codes.

_FORBIDDEN_IN_LINES = f"\\x00-\\x08\\x0b\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029{BIDIRECTIONAL}"
_FORBIDDEN_IN_LINE = f"\\x00-\\x1f\\x7f-\\x9f\u2028\u2029{BIDIRECTIONAL}"

MAX_LINE = 400
MAX_SENTENCE = 2_000
MAX_NOTES = 100_000

_SURROGATES = "\ud800-\udfff"
# Old files may have form feeds and lone carriage returns; they are no longer written.
_IN_LINES = re.compile(f"[{_FORBIDDEN_IN_LINES}\\x0c{_SURROGATES}]|\r(?!\n)")
_IN_LINE = re.compile(f"[{_FORBIDDEN_IN_LINE}{_SURROGATES}]+")


def clean_line(text: str, limit: int = MAX_LINE) -> str:
    """Return `text` as one line for a snapshot, with forbidden characters replaced by spaces."""
    line = _IN_LINE.sub(" ", text).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clean_lines(text: str, limit: int) -> str:
    """Return `text` without forbidden characters, shortened in the middle if it is too long."""
    lines = _IN_LINES.sub("", text)
    if len(lines) <= limit:
        return lines
    cut = f"\n… {len(lines) - limit:,} characters cut here …\n"
    keep = limit - len(cut) - 8
    head = keep // 2
    return lines[:head] + cut + lines[len(lines) - (keep - head) :]


@dataclass(frozen=True, slots=True)
class Text:
    """Annotation of a str: its form in a file, and how any text is converted to it on writing."""

    pattern: str
    max_length: int | None = None
    clean: Callable[[str], str] | None = None
    check: Callable[[str], object] | None = None  # raises ValueError for an invalid value

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
        datetime.fromisoformat(text)  # rejects 31 February


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
# The same, or empty for an unknown time.
TimeOrEmpty: TypeAlias = Annotated[str, Text(f"^({_UTC})?$", check=_real_date)]


class FieldError(ValueError):
    """A field of a file contradicts other fields. `place` is its path within the object."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


class Stored:
    """Base of stored dataclasses: no unknown fields, no type conversions, only finite numbers.

    In JSON, dataclasses are objects, tuples are lists and enums are texts.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, object]] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
        "ser_json_inf_nan": "null",
    }

    # Fields that are required in a file although they have a default.
    always_written: ClassVar[tuple[str, ...]] = ()
    # Fields that a file omits at their defaults, because older versions do not know them.
    omitted_defaults: ClassVar[tuple[str, ...]] = ()
    # Properties derived from fields, which files omit. Files before schema version 9 have them, and
    # they are ignored; `encode(noun, derived=True)` includes them.
    derived: ClassVar[tuple[str, ...]] = ()
    # Fields of earlier versions, which are ignored when a file is read.
    removed: ClassVar[tuple[str, ...]] = ()

    def _check_file(self, raw: Mapping[str, Any]) -> None:
        """Raise FieldError if the fields in a file are not in their only valid form."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import PydanticCustomError, core_schema

        schema = handler(source)
        stored: Any = handler.resolve_ref_schema(schema)
        stored["strict"] = False  # accept a JSON object, not only an instance
        for field in stored["schema"]["fields"]:
            if field["name"] in cls.always_written and field["schema"]["type"] == "default":
                field["schema"] = field["schema"]["schema"]
            _accept_json(field["schema"], handler.resolve_ref_schema)
        ignored = frozenset((*cls.derived, *cls.removed))
        if not ignored and not cls.omitted_defaults:
            return schema

        def read(raw: Any, validate: Callable[[Any], Any]) -> Any:
            if not isinstance(raw, dict):
                return validate(raw)
            try:
                known = raw
                if not ignored.isdisjoint(raw):
                    known = {k: v for k, v in raw.items() if k not in ignored}
                noun = validate(known)
            except InvalidProblem as error:
                raise ValueError(str(error)) from None
            try:
                noun._check_file(raw)
            except FieldError as error:
                rephrased = PydanticCustomError("value_error", "{error}", {"error": str(error)})
                raise _located(rephrased, *error.place) from None
            return noun

        def write(
            noun: Stored, dump: Callable[[Any], dict[str, Any]], info: SerializationInfo
        ) -> dict[str, Any]:
            fields = dump(noun)
            if info.context == WITH_DERIVED:
                for name in cls.derived:
                    value = getattr(noun, name)
                    fields[name] = (
                        encode(value, derived=True) if isinstance(value, Stored) else value
                    )
            for name in cls.omitted_defaults:
                if getattr(noun, name) == cls.__dataclass_fields__[name].default:  # type: ignore[attr-defined]
                    del fields[name]
            return fields

        # Replace the schema that the class's name refers to, in all places that use it.
        fields = dict(stored)
        wrapper = core_schema.no_info_wrap_validator_function(
            read,
            fields,
            ref=fields.pop("ref"),
            serialization=core_schema.wrap_serializer_function_ser_schema(write, info_arg=True),
        )
        stored.clear()
        stored.update(wrapper)
        return schema


def _located(error: str | PydanticCustomError, *place: str | int) -> ValidationError:
    from pydantic_core import ValidationError

    return ValidationError.from_exception_data(
        "Stored", [{"type": error, "loc": place, "input": None}]
    )


def _accept_json(schema: Any, resolve: Callable[[Any], Any]) -> None:
    schema = resolve(schema)
    if schema["type"] == "tuple":
        schema |= {"strict": False, "fail_fast": True}
        for item in schema["items_schema"]:
            _accept_json(item, resolve)
    elif schema["type"] == "dict":
        _accept_json(schema["values_schema"], resolve)
    elif schema["type"] == "enum":
        schema["strict"] = False
    elif schema["type"] in ("nullable", "default"):
        _accept_json(schema["schema"], resolve)


# Validation errors as one sentence: file, place, and what is wrong.
#
# Sentences quote no text of the file except field names that are plain identifiers, so they can be
# shown anywhere.


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
    """Return a file's name for messages: its last part, without unsafe characters."""
    last = re.split(r"[\\/]", name)[-1]
    label = _UNSAFE_IN_FILE_NAME.sub("_", last).strip(" .")
    return label[:80] or "the file"


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return a sentence part on the first error, `evaluations[3].latency.median_us must be a
    number`, and pydantic's name for that kind of error, `float_type`."""
    first = error.errors(include_url=False, include_input=False)[0]
    loc = first["loc"]
    phrase = _phrase(first["type"], first.get("ctx", {}))
    return f"{place_of(loc)} {phrase}" if loc else phrase, first["type"]


def place_of(loc: tuple[int | str, ...]) -> str:
    """Return a JSON path from pydantic's location; names that are not identifiers become `?`."""
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
    if kind == "value_error":  # raised by Attune's own validators
        return f"is wrong: {str(ctx['error']).rstrip('.')}"
    template = _PHRASES.get(kind)
    return template.format(**ctx) if template else "is not valid"


# Conversion between dataclasses and JSON, for files, journals and jobs.
#
# The dataclasses of `engine.attention.evaluation` and `engine.attention.problem` and the models of
# `engine.sessions.snapshot` are the schema. pydantic is imported when something is first encoded.


T = TypeVar("T")


# The context in which pydantic writes derived properties, too.
WITH_DERIVED = {"derived": True}


def encode(noun: Stored, *, derived: bool = False) -> dict[str, Any]:
    """Return the JSON object of a dataclass.

    Figures that are not finite are null; texts lose control characters and are shortened to the
    length limit of files.

    Args:
        derived: include derived properties (`Stored.derived`), for output; files do not have them.
    """
    from pydantic_core import from_json

    context = WITH_DERIVED if derived else None
    return cast(dict[str, Any], from_json(_adapter(type(noun)).dump_json(noun, context=context)))


def decode(kind: type[T], raw: Any, *, name: str = "The data") -> T:
    """Return the dataclass from parsed, unchecked JSON; the inverse of `encode`.

    Args:
        name: beginning of an error's sentence, such as the file.

    Raises:
        SnapshotError: one sentence with the path of the first error; its code is pydantic's name
            for that kind of error.
    """
    from pydantic import ValidationError

    try:
        return cast(T, _adapter(kind).validate_python(raw))
    except ValidationError as error:
        problem, kind_of_error = first_problem(error)
        raise SnapshotError(f"{name}: {problem}.", code=kind_of_error) from None


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        from pydantic import TypeAdapter

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
