"""A stand-in for pynvml: only the package's own names, taken with the package's own signatures."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pynvml


class _Refused(pynvml.NVMLError):  # type: ignore[misc]
    """An NVMLError with a text; the package's own looks its text up in the driver."""

    def __new__(cls, _: str) -> _Refused:
        return Exception.__new__(cls)

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return str(self.args[0])


class FakeNvml(types.ModuleType):
    """Answers what it is given; what the real package has beside that raises NVMLError, as old
    boards do, and what it has not does not exist here."""

    NVMLError = pynvml.NVMLError

    def __init__(self, answers: dict[str, Any], init_error: str | None = None) -> None:
        super().__init__("pynvml")
        self.answers = answers
        self.init_error = init_error
        self.open = 0
        self.asked: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error:
            raise _Refused(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # AttributeError where it has no such name
        if not callable(real):
            return real
        signature = inspect.signature(inspect.unwrap(real))

        def query(*args: Any) -> Any:
            signature.bind(*args)
            self.asked.append(name)
            key = name if name in self.answers else (name, *args[1:])
            if key not in self.answers:
                raise _Refused("Not Supported")
            answer = self.answers[key]
            return answer(*args) if callable(answer) else answer

        return query
