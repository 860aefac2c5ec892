"""What `auto` takes by the times that are known on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace

from engine.history import History
from engine.pipeline.request import EvaluationRequest, ResolvedRequest, resolve


def resolved_with_note(request: EvaluationRequest, history: History) -> ResolvedRequest:
    """As `resolve`; what `auto` takes and why goes to stderr."""
    resolved = resolve(request, history)
    if resolved.choice is not None:
        print(resolved.choice.note(), file=sys.stderr)
    return resolved


def as_resolved(request: EvaluationRequest, resolved: ResolvedRequest) -> EvaluationRequest:
    """The request for the variant and config that it was resolved to."""
    return replace(request, variant=resolved.variant.id, config=resolved.config)
