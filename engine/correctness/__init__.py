"""Is an output right, and if not, where and why is it wrong."""

from engine.correctness.check import check_output, check_with_maps
from engine.correctness.maps import ErrorMap, ErrorMaps

__all__ = [
    "ErrorMap",
    "ErrorMaps",
    "check_output",
    "check_with_maps",
]
