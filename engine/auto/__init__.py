"""`auto`: the variant and config to take where nobody named one, with the reason in words."""

from engine.auto.choice import Choice, Taken, choose, chosen_variants

__all__ = ["Choice", "Taken", "choose", "chosen_variants"]
