"""`auto`: choose a kernel for a problem and GPU, with the reason."""

from engine.choose.auto.choice import (
    Choice,
    candidates_for,
    choose,
    chosen_variants,
    decided_by,
    rank_of,
)

__all__ = ["Choice", "candidates_for", "choose", "chosen_variants", "decided_by", "rank_of"]
