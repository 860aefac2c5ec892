"""How the nouns are held in files: bounds as annotations, and the base of what is stored.

The dataclasses are their own schema: pydantic reads their annotations when something is first
encoded or decoded (`engine.records.encoding`). Importing this does not import pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from annotated_types import Ge, Le

from engine.errors import InvalidProblem

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import PydanticCustomError, ValidationError

MAX_COUNT = 2**63 - 1


class NanAsNull:
    """Annotation: NaN is null in a file. Infinity is, too, and comes back as NaN."""

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
MAX_ERROR = 1e39  # more than two finite BF16 numbers can differ by
ErrorSize: TypeAlias = Annotated[float, Ge(0), Le(MAX_ERROR), NanAsNull()]
Tolerance: TypeAlias = Annotated[float, Ge(1e-12), Le(MAX_ERROR), NanAsNull()]
# Of one SM: above what any GPU has, so that figures made of them stay within int64.
PerSm: TypeAlias = Annotated[int, Ge(0), Le(4096)]
SmCount: TypeAlias = Annotated[int, Ge(0), Le(65_536)]
# CUDA's own limits.
ThreadsPerCta: TypeAlias = Annotated[int, Ge(0), Le(1024)]
RegistersPerThread: TypeAlias = Annotated[int, Ge(0), Le(255)]


class FieldError(ValueError):
    """A field of a file does not agree with the others; `place` is where, within the noun."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


class Stored:
    """Base of the dataclasses that files hold: no unknown fields, no conversions, finite numbers.

    JSON has objects, lists and texts where the nouns have dataclasses, tuples and enums.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, object]] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
        "ser_json_inf_nan": "null",
    }

    # Fields that a file must give, although they have a default.
    always_written: ClassVar[tuple[str, ...]] = ()
    # What a file gives besides the fields.
    derived: ClassVar[tuple[str, ...]] = ()

    def _to_file(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The encoded fields as a file holds them; derived figures are added here."""
        return fields

    def _check_file(self, raw: Mapping[str, Any]) -> None:
        """FieldError where what the file gave besides the fields does not agree with them."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import PydanticCustomError, core_schema

        schema = handler(source)
        stored: Any = handler.resolve_ref_schema(schema)
        stored["strict"] = False  # takes an object, and not only an instance
        for field in stored["schema"]["fields"]:
            if field["name"] in cls.always_written and field["schema"]["type"] == "default":
                field["schema"] = field["schema"]["schema"]
            _accept_json(field["schema"], handler.resolve_ref_schema)
        if cls._to_file is Stored._to_file:
            return schema

        def read(raw: Any, validate: Callable[[Any], Any]) -> Any:
            if not isinstance(raw, dict):
                return validate(raw)
            try:
                noun = validate({k: v for k, v in raw.items() if k not in cls.derived})
            except InvalidProblem as error:
                raise ValueError(str(error)) from None
            for name in cls.derived:
                if name not in raw:
                    raise _located("missing", name)
            try:
                noun._check_file(raw)
            except FieldError as error:
                told = PydanticCustomError("value_error", "{error}", {"error": str(error)})
                raise _located(told, *error.place) from None
            return noun

        def write(noun: Stored, encode: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            return noun._to_file(encode(noun))

        # In place of what the name of the class stands for, wherever it is used.
        fields = dict(stored)
        wrapper = core_schema.no_info_wrap_validator_function(
            read,
            fields,
            ref=fields.pop("ref"),
            serialization=core_schema.wrap_serializer_function_ser_schema(write),
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
