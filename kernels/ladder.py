"""The ladder: the only list of variants, in order."""

from __future__ import annotations

from kernels.variant import Variant

LADDER: tuple[Variant, ...] = ()


def by_id(variant_id: str) -> Variant:
    """The variant whose id (`v01`) or name (`v01_fa1_baseline`) this is; KeyError otherwise."""
    for variant in LADDER:
        if variant_id in (variant.id, variant.name):
            return variant
    raise KeyError(variant_id)
