"""A bounded cache of values that a process has read or computed."""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Newest(dict[Key, Value], Generic[Key, Value]):
    """A thread-safe dictionary of at most `most` entries; a new entry replaces the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        while key not in self and len(self) >= self._most:
            with suppress(StopIteration, RuntimeError):  # another thread was quicker
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
