"""`auto`: the kernel to take where nobody named one, with the reason in words."""

from engine.choose.auto.choice import (
    Choice,
    candidates_for,
    choose,
    chosen_variants,
    decided_by,
    rank_of,
)

__all__ = ["Choice", "candidates_for", "choose", "chosen_variants", "decided_by", "rank_of"]
