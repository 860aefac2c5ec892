"""Whether the pointers that a source declares are of the types that a launch gives it.

A `float*` that is given halves reads two of them as one number, in silence. Only types whose
elements are certain are compared: `void`, `uint4`, a template's `T` and names of other headers are
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.base.launch import Argument, StructArg, TensorArg
from engine.own_kernels.host_launch import Parameter, fields_of, kernels_of
from engine.plan import LaunchPlan
from kernels.arguments import PACKED, TENSORS
from kernels.source_text import read_text
from kernels.toml_block import KernelDescriptionError

_ELEMENTS: Final = {
    "float": "float32", "half": "float16", "__half": "float16", "half2": "float16",
    "__half2": "float16", "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16",
    "__nv_bfloat162": "bfloat16", "nv_bfloat162": "bfloat16", "double": "float64",
    "int": "int32", "int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "uint32_t": "uint32", "int64_t": "int64", "long long": "int64", "uint64_t": "uint64",
}  # fmt: skip
# A buffer of bits may hold the other.
_ALIKE: Final = ({"int32", "uint32"}, {"int64", "uint64"})


def mistaken_types(plan: LaunchPlan) -> str:
    """Why an own kernel would misread its buffers; empty where nothing tells."""
    try:
        return why_types_differ(plan, read_text(plan.source))
    except KernelDescriptionError:
        return ""  # the compiler says why it cannot be read


def why_types_differ(plan: LaunchPlan, text: str) -> str:
    """The sentence about the first pointer of another type; empty if all agree or none is told."""
    declared = {kernel.name: kernel for kernel in kernels_of(text)}
    for launch in plan.passes:
        kernel = declared.get(launch.entry.partition("<")[0].strip())
        if kernel is None:
            continue
        for argument, parameter in _pairs(launch.args, kernel.parameters, text):
            needs, given = _ELEMENTS.get(parameter.type), _given(plan, argument.name)
            if needs is None or not given or needs == given or {needs, given} in _ALIKE:
                continue
            tensors = (*TENSORS, PACKED)
            remedy = (
                f'dtypes = ["{needs}"]' if argument.name in tensors else f'dtype = "{needs}" of it'
            )
            return (
                f"{kernel.name} declares `{parameter.written}` and would be given "
                f"{argument.name} in {given}: write {remedy} in the description, or declare it "
                "otherwise."
            )
    return ""


def _pairs(
    arguments: Sequence[Argument], parameters: Sequence[Parameter], text: str
) -> Iterator[tuple[TensorArg, Parameter]]:
    """Each pointer with its declaration, those of structures among them."""
    if len(arguments) != len(parameters):
        return  # said elsewhere
    for argument, parameter in zip(arguments, parameters, strict=True):
        if isinstance(argument, StructArg):
            yield from _pairs(argument.fields, fields_of(text, parameter.type), text)
        elif isinstance(argument, TensorArg) and parameter.is_pointer:
            yield argument, parameter


def _given(plan: LaunchPlan, name: str) -> str:
    """The element type of a buffer."""
    if name in (*TENSORS, PACKED):
        return plan.problem.dtype
    if name == "lse":
        return "float32"
    return next((scratch.dtype for scratch in plan.scratch if scratch.name == name), "")
