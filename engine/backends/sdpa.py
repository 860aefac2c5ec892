"""PyTorch's scaled-dot-product attention: the honest low-precision answer and the speed baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engine.errors import ToolMissing
from engine.tensors import FloatArray, Inputs, RawArray

if TYPE_CHECKING:
    import torch


def sdpa_same_dtype(
    inputs: Inputs, device: Literal["cpu", "cuda"] = "cpu"
) -> tuple[FloatArray, str]:
    """PyTorch's default attention on the inputs in their own 16-bit dtype.

    Returns:
        The output as float32, `[batch, num_heads, seqlen, head_dim]`, and a name that says what
        computed it ("PyTorch 2.13.0 SDPA, float16 on the CPU").

    Raises:
        ToolMissing: PyTorch is not installed, or has no CUDA when `device` is "cuda".
    """
    torch = _import_torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise ToolMissing(
            f"PyTorch {torch.__version__} finds no CUDA device: ask for SDPA on the CPU, or "
            "install a CUDA build of PyTorch and a driver."
        )
    q, k, v = (to_torch(x, inputs, device) for x in (inputs.q, inputs.k, inputs.v))
    with torch.inference_mode():
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=inputs.problem.causal
        )
    where = "the CPU" if device == "cpu" else torch.cuda.get_device_name()
    name = f"PyTorch {torch.__version__} SDPA, {inputs.problem.dtype} on {where}"
    return out.float().cpu().numpy(), name


def to_torch(raw: RawArray, inputs: Inputs, device: Literal["cpu", "cuda"]) -> torch.Tensor:
    """A raw array as a tensor of its problem's dtype, same shape, on `device`."""
    torch = _import_torch()
    # torch.from_numpy warns about memory it may not write to; such an array is copied first.
    tensor = torch.from_numpy(np.require(raw, requirements=["C", "W"]))
    if inputs.problem.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(device)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ToolMissing(
            "PyTorch is not installed, and its attention is the baseline: pip install torch"
        ) from error
    return torch
