"""A person's tensors as Q, K and V, and O as a tensor of the same kind: NumPy, PyTorch, CuPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from engine.base.errors import InvalidProblem
from engine.problem import Problem
from engine.tensors import Inputs, RawArray
from kernels.variant import Dtype


@dataclass(frozen=True, slots=True)
class Tensors:
    """Q, K and V on the host, and the tensor whose kind O is to have."""

    inputs: Inputs
    like: Any

    @property
    def problem(self) -> Problem:
        return self.inputs.problem

    def write(self, out: RawArray) -> Any:
        """O as a tensor of the library, format and device of `like`."""
        if _library(self.like) == "torch":
            import torch

            made = torch.from_numpy(out.copy())
            return made.view(self.like.dtype).to(self.like.device)
        if _library(self.like) == "cupy":
            import cupy

            return cupy.asarray(out).view(self.like.dtype)
        return out.view(self.like.dtype) if isinstance(self.like, np.ndarray) else out


def read_tensors(q: Any, k: Any, v: Any, *, causal: bool) -> Tensors:
    """The tensors as the inputs of a problem.

    Args:
        q: `[batch, heads, seqlen, head_dim]`; any object with DLPack, FP16, BF16 or FP32.
        k, v: `[batch, heads_kv, seqlen_kv, head_dim]`.

    Raises:
        InvalidProblem: what is no tensor of four dimensions, another format, shapes that do not
            belong together.
    """
    read = {name: _read(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    formats = {name: dtype for name, (_, dtype) in read.items()}
    if len(set(formats.values())) > 1:
        told = ", ".join(f"{name} {dtype}" for name, dtype in formats.items())
        raise InvalidProblem(f"q, k and v have one format, not {told}.")
    raw = {name: array for name, (array, _) in read.items()}
    batch, heads, seqlen, head_dim = raw["q"].shape
    problem = Problem(
        batch,
        heads,
        seqlen,
        head_dim,
        causal,
        formats["q"],
        seqlen_kv=raw["k"].shape[2],
        num_heads_kv=raw["k"].shape[1],
        head_dim_v=raw["v"].shape[3],
    )
    for name, shape in (("k", problem.k_shape), ("v", problem.v_shape)):
        if raw[name].shape != shape:
            raise InvalidProblem(
                f"{name} is {list(raw[name].shape)} and belongs to q {list(problem.shape)} as "
                f"{list(shape)}: [batch, heads, seqlen, head_dim]."
            )
    return Tensors(Inputs(problem, raw["q"], raw["k"], raw["v"]), q)


def _read(name: str, tensor: Any) -> tuple[Any, Dtype]:
    """The raw array on the host, contiguous, and its format."""
    library = _library(tensor)
    dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if dtype not in get_args(Dtype):
        raise InvalidProblem(
            f"{name} is {dtype}: give a tensor of float16, bfloat16 or float32 by NumPy, PyTorch, "
            "CuPy or another library with DLPack."
        )
    if library == "torch":
        import torch

        host = tensor.detach().cpu().contiguous()
        array = (host.view(torch.uint16) if dtype == "bfloat16" else host).numpy()
    elif library == "cupy":
        array = tensor.get()
    elif isinstance(tensor, np.ndarray):
        array = tensor
    else:
        array = _by_dlpack(name, tensor)
    array = np.ascontiguousarray(array)
    if array.ndim != 4:
        raise InvalidProblem(
            f"{name} has {array.ndim} dimensions: give [batch, heads, seqlen, head_dim]."
        )
    # NumPy has no bfloat16 of its own: its bit patterns.
    raw = array.view(np.uint16) if dtype == "bfloat16" else array
    return raw, dtype  # type: ignore[return-value]


def _library(tensor: Any) -> str:
    return type(tensor).__module__.partition(".")[0]


def _by_dlpack(name: str, tensor: Any) -> Any:
    try:
        return np.from_dlpack(tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        raise InvalidProblem(
            f"{name} cannot be read on the host ({error}): give it as NumPy, PyTorch or CuPy."
        ) from None
