"""One check and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from engine.base.errors import AttuneError, ToolMissing


class State(StrEnum):
    """What came of a check."""

    OK = "OK"
    FAILED = "FAILED"
    NOT_POSSIBLE = "NOT POSSIBLE HERE"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The state, and a sentence with what was seen, or what is wrong and what to do."""

    name: str
    state: State
    sentence: str


class CheckFailed(AttuneError):
    """What was checked does not work; the text says what to do."""


Check: TypeAlias = Callable[[], str]  # the sentence of a check that passed


def perform(name: str, check: Check) -> CheckResult:
    """Run one check. Whatever it raises is its result: a tool that is missing makes it impossible,
    anything else is a failure."""
    try:
        return CheckResult(name, State.OK, check())
    except ToolMissing as error:
        return CheckResult(name, State.NOT_POSSIBLE, str(error))
    except AttuneError as error:
        return CheckResult(name, State.FAILED, str(error))
    except Exception as error:
        sentence = f"Attune itself failed ({type(error).__name__}: {error}): send this report."
        return CheckResult(name, State.FAILED, " ".join(sentence.split()))
