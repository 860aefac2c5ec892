"""`auto`: the variant and config to take where nobody named one, with the reason in words."""

from engine.auto.choice import Choice, Taken, TakenAt, choose, choose_at, chosen_variants

__all__ = ["Choice", "Taken", "TakenAt", "choose", "choose_at", "chosen_variants"]
