"""`auto`: choose a kernel for a problem and GPU, with the reason."""

from engine.choose.auto.choice import (
    Choice,
    Resolved,
    candidates_for,
    choose,
    chosen_variants,
    decided_by,
    rank_of,
    resolve_kernel,
)

__all__ = [
    "Choice",
    "Resolved",
    "candidates_for",
    "choose",
    "chosen_variants",
    "decided_by",
    "rank_of",
    "resolve_kernel",
]
