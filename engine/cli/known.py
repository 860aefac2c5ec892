"""Times that are known on this machine, and what `auto` takes by them."""

from __future__ import annotations

import sys

from engine.auto import Choice, TakenAt
from engine.base.errors import AttuneError
from engine.pipeline.request import EvaluationRequest, pin_auto
from engine.sessions.known_times import KnownTimes


def known_times() -> KnownTimes | None:
    """What sessions hold; None on a machine that can only measure, or cannot read them."""
    try:
        return KnownTimes()
    except (ImportError, AttuneError):
        return None


def taken_at() -> TakenAt:
    """The times that `auto` goes by, of kernels as they stand here."""
    known = known_times()
    return known.taken_at if known is not None else lambda *_: ()


def pinned(request: EvaluationRequest) -> tuple[EvaluationRequest, Choice | None]:
    """A request for `auto` as one for the kernel chosen by the times that are known here."""
    return pin_auto(request, taken_at())


def pinned_with_note(request: EvaluationRequest) -> EvaluationRequest:
    """As `pinned`; what was chosen and why goes to stderr."""
    request, choice = pinned(request)
    if choice is not None:
        print(choice.note(), file=sys.stderr)
    return request
