"""Is an output right, and if not, where and why is it wrong."""

from engine.correctness.check import check_output, check_with_maps
from engine.correctness.maps import ErrorMap, maps_from_arrays, maps_to_arrays

__all__ = [
    "ErrorMap",
    "check_output",
    "check_with_maps",
    "maps_from_arrays",
    "maps_to_arrays",
]
