"""One output beside its reference: where both were computed, and which elements are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.correctness.reference import Coverage, Float64Array
from engine.tensors import RawArray, bits_of, decode, poison_of
from kernels.variant import Dtype

BoolArray = npt.NDArray[np.bool_]

_EXPONENT_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}


@dataclass(frozen=True, slots=True, eq=False)
class ComparedOutput:
    """Output against reference on the covered rows; arrays are `[slices, rows, head_dim]`.

    `error` is |out − reference|, 0 where the output is not finite (`finite` tells the two apart).
    """

    coverage: Coverage
    out: Float64Array
    reference: Float64Array
    error: Float64Array
    finite: BoolArray
    tolerance: float

    @property
    def over(self) -> BoolArray:
        """Finite elements over the tolerance."""
        return self.error > self.tolerance

    @property
    def bad(self) -> BoolArray:
        """Elements over the tolerance, NaN, infinite or never written."""
        return ~self.finite | self.over

    def worst_slice(self) -> int:
        """Position of the slice with the largest error; the first broken one if all are exact."""
        by_slice = self.error.max(axis=(1, 2))
        if by_slice.max() == 0:
            by_slice = (~self.finite).any(axis=(1, 2)).astype(np.float64)
        return int(by_slice.argmax())


def compare_output(
    raw: RawArray, reference: Float64Array, coverage: Coverage, tolerance: float
) -> ComparedOutput:
    """Compare a raw output with the covered reference.

    Args:
        raw: `[batch, num_heads, seqlen, head_dim]`.
        reference: `[slices, rows, head_dim]` of `coverage`.
    """
    dtype = coverage.problem.dtype
    covered = coverage.take(raw)
    # The poison is a signalling NaN: widening it raises the flag, which says nothing new.
    with np.errstate(invalid="ignore"):
        out = decode(covered, dtype).astype(np.float64)
    finite = ~nonfinite(covered, dtype)
    error = np.zeros_like(reference)
    np.subtract(out, reference, out=error, where=finite)
    np.abs(error, out=error)
    return ComparedOutput(coverage, out, reference, error, finite, tolerance)


@dataclass(frozen=True, slots=True, eq=False)
class BrokenElements:
    """What is no number in a whole output, `[batch, num_heads, seqlen, head_dim]`."""

    unwritten: BoolArray  # still holds the poison
    nonfinite: BoolArray  # NaN or infinite, though it was written

    @classmethod
    def of(cls, raw: RawArray, dtype: Dtype) -> BrokenElements:
        unwritten = np.asarray(bits_of(raw) == poison_of(dtype))
        return cls(unwritten, nonfinite(raw, dtype) & ~unwritten)

    def first_index(self) -> tuple[int, int, int, int] | None:
        """(batch, head, row, column) of the first of either kind in memory order."""
        broken = self.unwritten | self.nonfinite
        if not broken.any():
            return None
        batch, head, row, column = np.unravel_index(int(broken.argmax()), broken.shape)
        return int(batch), int(head), int(row), int(column)


def nonfinite(raw: RawArray, dtype: Dtype) -> BoolArray:
    """Where a raw array holds NaN or infinity: all exponent bits set. The poison is a NaN too."""
    bits = bits_of(raw)
    exponent = bits.dtype.type(_EXPONENT_BITS[dtype])
    return np.asarray((bits & exponent) == exponent)


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Error statistics over finite elements; all of the reference where there is none.

    So an output of nothing but NaN errs as one of zeros would, and every figure stays finite.
    """

    max_abs_err: float
    mean_abs_err: float
    rms_err: float
    cosine: float

    @classmethod
    def of(cls, compared: ComparedOutput) -> ErrorFigures:
        finite, ref = compared.finite, compared.reference
        if not finite.any():
            size = np.abs(ref)
            return cls(float(size.max()), float(size.mean()), _rms(size), 0.0)
        error, out = compared.error, compared.out
        if not finite.all():
            error, out, ref = error[finite], out[finite], ref[finite]
        norms = float(np.linalg.norm(out)) * float(np.linalg.norm(ref))
        cosine = float(np.vdot(out, ref)) / norms if norms > 0 else float(not np.any(error))
        return cls(
            float(error.max()), float(error.mean()), _rms(error), float(np.clip(cosine, -1, 1))
        )


def _rms(error: Float64Array) -> float:
    return float(np.linalg.norm(error) / np.sqrt(error.size))
