"""`auto`: the kernel to take where nobody named one, with the reason in words."""

from engine.auto.choice import Choice, choose, chosen_variants

__all__ = ["Choice", "choose", "chosen_variants"]
