"""Check whether an output is correct, and if not, find where and why it is wrong."""

from engine.correctness.check import (
    check_against,
    check_output,
    check_with_maps,
    with_order_of_threads,
    with_passing_inputs,
)
from engine.correctness.expected import Expected, ExpectedOutputs, expect
from engine.correctness.gradients import inputs_of
from engine.correctness.output_error import ErrorMap, maps_from_arrays, maps_to_arrays

__all__ = [
    "ErrorMap",
    "Expected",
    "ExpectedOutputs",
    "check_against",
    "check_output",
    "check_with_maps",
    "expect",
    "inputs_of",
    "maps_from_arrays",
    "maps_to_arrays",
    "with_order_of_threads",
    "with_passing_inputs",
]
