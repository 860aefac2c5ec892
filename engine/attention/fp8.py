"""E4M3, the FP8 format of a K/V cache, on the host.

OCP 8-bit floating point specification, 1.0: 4 exponent bits with bias 7, 3 mantissa bits, no
infinity, and NaN if all seven bits are 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_E4M3_VALUES: Final = np.array(
    [(n % 8 + 8 * (n >= 8)) * 2.0 ** (max(n // 8, 1) - 10) for n in range(127)], np.float32
)
E4M3_LARGEST: Final = 448.0


def e4m3_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Convert float32 to E4M3, rounding to nearest even and saturating at the largest number."""
    size = np.abs(values)
    above = np.clip(np.searchsorted(_E4M3_VALUES, size), 1, len(_E4M3_VALUES) - 1)
    low, high = _E4M3_VALUES[above - 1], _E4M3_VALUES[above]
    middle = (low + high) / 2
    takes_high = (size > middle) | ((size == middle) & (above % 2 == 0))
    codes = np.where(takes_high, above, above - 1).astype(np.uint8)
    return np.asarray(codes | np.signbit(values).astype(np.uint8) << 7, np.uint8)


def e4m3_values(stored: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Convert E4M3 to float32, exactly."""
    table = np.concatenate([_E4M3_VALUES, [np.nan]]).astype(np.float32)
    values: npt.NDArray[np.float32] = (
        np.where(stored >> 7, -1, 1).astype(np.float32) * table[stored & 127]
    )
    return values
