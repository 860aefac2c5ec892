"""Nouns ↔ JSON: the one way to write and to read what files, journals and jobs hold.

The dataclasses of `engine.evaluation` and `engine.problem` and the models of
`engine.records.snapshot` are the schema. pydantic is imported when something is first encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from engine.errors import SnapshotError
from engine.records.explain import first_problem
from engine.schema import Stored

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def encode(noun: Stored) -> dict[str, Any]:
    """The JSON object of a noun.

    Figures that are not finite are null; texts lose control characters and are cut where they are
    longer than a file may hold.
    """
    from pydantic_core import from_json

    return cast(dict[str, Any], from_json(_adapter(type(noun)).dump_json(noun)))


def decode(kind: type[T], raw: Any, *, name: str = "The data", at: str = "") -> T:
    """The inverse of `encode`, from parsed JSON that nobody has checked.

    Args:
        name: what the sentence of an error begins with, such as the file.
        at: the place of `raw` within it.

    Raises:
        SnapshotError: one sentence with the place of the first thing that is wrong.
    """
    from pydantic import ValidationError

    try:
        return cast(T, _adapter(kind).validate_python(raw))
    except ValidationError as error:
        raise SnapshotError(f"{name}: {first_problem(error, at)}.") from None


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        from pydantic import TypeAdapter

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
