"""PyTorch's attention: the result in the inputs' own dtype, and the baselines for speed."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from engine.attention.problem import Problem
from engine.attention.tensors import FloatArray, Inputs, RawArray, alibi_slopes
from engine.base.errors import MeasureError, ToolMissing
from kernels.variant import FEATURES

if TYPE_CHECKING:
    import torch

# Our name of each backend, and its member of torch.nn.attention.SDPBackend.
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}


# Separate PyTorch operations, as in model code without a fused kernel: the baseline for problems
# that SDPA cannot compute.
COMPOSED = "composed"


def baseline_names(problem: Problem) -> tuple[str, ...]:
    """Return a problem's baselines: the SDPA backends, and `COMPOSED` if they cannot compute it."""
    return (*BACKENDS, COMPOSED) if unsupported_features(problem) else tuple(BACKENDS)


def unsupported_features(problem: Problem) -> str:
    """Return the features that PyTorch's SDPA cannot compute, in words; empty if none.

    ALiBi would have to be a mask in the inputs' 16-bit dtype, which rounds the bias. For K and V in
    FP8 it gets their values in 16 bits, which are twice as many bytes.
    """
    taken = ("kv_offset", "window", "backward", "kv_fp8", "lse")
    lacking = [FEATURES[f] for f in problem.features if f not in taken]
    return " and ".join(lacking)


def sdpa_same_dtype(
    inputs: Inputs, device: Literal["cpu", "cuda"] = "cpu"
) -> tuple[FloatArray, str]:
    """Compute PyTorch's default attention in the inputs' dtype.

    Returns:
        The output as float32, `[batch, num_heads, seqlen, head_dim]`, and what computed it, as
        text ("PyTorch 2.13.0 SDPA, float16 on the CPU").

    Raises:
        ToolMissing: PyTorch is not installed, or has no CUDA when `device` is "cuda".
    """
    torch = _import_torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise ToolMissing(
            f"PyTorch {torch.__version__} finds no CUDA device: ask for SDPA on the CPU, or "
            "install a CUDA build of PyTorch and a driver.",
            code="torch_without_cuda",
        )
    q, k, v = (to_torch(x, inputs, device) for x in (inputs.q, inputs.k, inputs.v))
    with torch.inference_mode():
        out = _attention(inputs.problem, q, k, v)
    where = "the CPU" if device == "cpu" else torch.cuda.get_device_name()
    name = f"PyTorch {torch.__version__} SDPA, {inputs.problem.dtype} on {where}"
    return out.float().cpu().numpy(), name


def sdpa_gradients(
    inputs: Inputs,
) -> tuple[tuple[FloatArray, FloatArray, FloatArray], str]:
    """Compute dQ, dK and dV with PyTorch's default attention on the CPU, in the inputs' dtype.

    Returns:
        dQ, dK, dV as float32 in the shapes of Q, K and V, and what computed them, as text.

    Raises:
        ToolMissing: PyTorch is not installed.
    """
    torch = _import_torch()
    assert inputs.dout is not None
    q, k, v = (to_torch(x, inputs, "cpu").clone() for x in (inputs.q, inputs.k, inputs.v))
    given = [x.requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = _attention(inputs.problem, q, k, v)
        found = torch.autograd.grad(out, given, to_torch(inputs.dout, inputs, "cpu"))
    name = f"the gradients of PyTorch {torch.__version__} SDPA, {inputs.problem.dtype} on the CPU"
    dq, dk, dv = (x.float().numpy() for x in found)
    return (dq, dk, dv), name


def to_torch(raw: RawArray, inputs: Inputs, device: Literal["cpu", "cuda"]) -> torch.Tensor:
    """Return a raw array as a tensor of the problem's dtype and the same shape on `device`."""
    torch = _import_torch()
    # torch.from_numpy warns about read-only memory, so such an array is copied first.
    tensor = torch.from_numpy(np.require(raw, requirements=["C", "W"]))
    if inputs.problem.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(device)


@contextmanager
def baseline(
    name: str, problem: Problem, inputs: Inputs, device: Literal["cpu", "cuda"] = "cuda"
) -> Iterator[SdpaTimer]:
    """Return a timer of one SDPA backend for the sampler.

    Args:
        name: one of `baseline_names`; PyTorch may not use another backend instead.
        problem: the problem of `inputs`.
        device: on the CPU, only calls can be timed.

    Raises:
        ToolMissing: PyTorch is not installed, or finds no GPU.
        MeasureError: not enough memory for the inputs.
    """
    if name != COMPOSED and (what := unsupported_features(problem)):
        raise MeasureError(
            f"PyTorch's SDPA cannot compute {what}: the baseline is {COMPOSED}, separate matmul, "
            "softmax and elementwise operations.",
            code="composed_baseline",
        )
    torch = require_torch_on_gpu() if device == "cuda" else _import_torch()
    timer = SdpaTimer(name, problem, inputs, device)
    try:
        yield timer
    finally:
        timer.close()
        # After a lost context this raises too; the earlier error is reported.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def unsupported_reason(name: str, error: str, said: list[str]) -> str:
    """Return why a backend gave no time, as a sentence.

    Args:
        error: PyTorch's exception; often only "No available kernel".
        said: the warnings before it, which give the cause, among others on disabled backends.
    """
    causes = [
        text.split(" (Triggered internally")[0].strip().rstrip(".")
        for text in said
        if "not used because" not in text and "runtime disabled" not in text
    ]
    lines = error.strip().splitlines()
    cause = next((c for c in causes if c), lines[0].rstrip(".") if lines else "no reason given")
    return f"PyTorch's {name} attention could not be timed: {cause}."


class SdpaTimer:
    """Times one SDPA backend. Implements `engine.measure.side_by_side.Launchable`.

    On the CPU it computes attention and times calls, but has no device times.
    """

    def __init__(
        self,
        name: str,
        problem: Problem,
        inputs: Inputs,
        device: Literal["cpu", "cuda"] = "cuda",
    ) -> None:
        self._torch = _import_torch()
        self._name = name
        self._problem = problem
        self._is_on_gpu = device == "cuda"
        self._said: list[str] = []  # PyTorch's warnings
        self._flush_area: Any = None
        self._dout: Any = None  # gradient of O, for the backward pass
        try:
            first = tuple(to_torch(x, inputs, device) for x in (inputs.q, inputs.k, inputs.v))
            self._scores: ComposedScores | None = None
            if name == COMPOSED:
                self._scores = ComposedScores(inputs, first[0].device)
            if inputs.dout is not None:
                first = tuple(x.requires_grad_() for x in first)
                self._dout = to_torch(inputs.dout, inputs, device)
        except RuntimeError as error:  # also torch.OutOfMemoryError
            raise self.failed(error) from error
        self._copies = [first]
        self._graphs: list[Any] = []
        self._forward: dict[int, Any] = {}  # O of each copy, for the backward pass

    def close(self) -> None:
        """Drop all tensors and graphs, so that PyTorch can free their memory."""
        self._graphs.clear()
        self._forward.clear()
        self._copies.clear()
        self._scores = None
        self._flush_area = None

    @property
    def copy_bytes(self) -> int:
        return self._problem.io_bytes

    @property
    def l2_bytes(self) -> int:
        device = self._torch.cuda.current_device()
        return int(self._torch.cuda.get_device_properties(device).L2_cache_size)

    def free_bytes(self) -> int:
        self._torch.cuda.empty_cache()
        return int(self._torch.cuda.mem_get_info()[0])

    def make_copies(self, count: int) -> None:
        while len(self._copies) < count:
            self._copies.append(
                tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in self._copies[0])
            )

    def once_us(self) -> float:
        with self._forced():
            return self._elapsed_us(lambda: self.attend(0))

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        graph = self._torch.cuda.CUDAGraph()
        # Kept until their copy is used again, so that outputs rotate like the inputs.
        outputs: dict[int, torch.Tensor] = {}
        with self._forced():
            for i in range(copies if self._dout is not None else 0):
                self.attend(i)  # compute O before the graph is captured
        with self._forced(), self._torch.cuda.graph(graph):
            for i in range(launches):
                outputs[i % copies] = self.attend(i % copies)
        self._graphs.append(graph)
        position = len(self._graphs) - 1
        # Looked up, because a closure over the graph would keep its memory from being freed.
        return lambda: self._elapsed_us(self._graphs[position].replay)

    def flush_l2(self, size: int) -> None:
        if self._flush_area is None:
            self._flush_area = self._torch.empty(size, dtype=self._torch.uint8, device="cuda")
        self._flush_area.zero_()

    def call_us(self, calls: int) -> float:
        with self._forced():
            start = time.perf_counter_ns()
            for _ in range(calls):
                self.attend(0)
                if self._is_on_gpu:
                    self._torch.cuda.synchronize()
            return (time.perf_counter_ns() - start) / 1000 / calls

    def verify(self) -> None:
        """Do nothing: PyTorch's own result is the reference."""

    def failed(self, error: Exception) -> MeasureError:
        return MeasureError(unsupported_reason(self._name, str(error), self._said))

    @contextmanager
    def _forced(self) -> Iterator[None]:
        """Allow only this backend. Entered outside the timed code, because it takes time itself."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with (
            warnings.catch_warnings(record=True) as caught,
            sdpa_kernel(getattr(SDPBackend, BACKENDS.get(self._name, "MATH"))),
            self._torch.inference_mode(self._dout is None),
        ):
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self._said += [str(w.message) for w in caught]

    def attend(self, copy: int = 0) -> torch.Tensor:
        """Return O of one copy of the inputs; backward, dQ (dK and dV are computed with it)."""
        q, k, v = self._copies[copy]
        if self._scores is not None:
            return composed_attention(self._scores, q, k, v)
        if self._dout is None:
            return _attention(self._problem, q, k, v)
        # O is computed once per copy, so that only the backward pass is timed.
        if copy not in self._forward:
            self._forward[copy] = _attention(self._problem, q, k, v)
        gradient: torch.Tensor = self._torch.autograd.grad(
            self._forward[copy], (q, k, v), self._dout, retain_graph=True
        )[0]
        return gradient

    def _elapsed_us(self, queue: Callable[[], object]) -> float:
        start, stop = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        queue()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000


class ComposedScores:
    """Prepared tensors that modify scores: bias, mask of visible keys, sinks."""

    def __init__(self, inputs: Inputs, device: torch.device) -> None:
        torch = _import_torch()
        problem = inputs.problem
        lengths = problem.seqlens or (problem.num_keys,)
        keys = torch.tensor(lengths, device=device)[:, None, None, None]
        queries = keys.clamp(max=problem.seqlen) if problem.seqlens else problem.seqlen
        row = torch.arange(problem.seqlen, device=device)[:, None]
        key = torch.arange(problem.num_keys, device=device)
        distance = row + keys - queries - key  # [1 or batch, 1, seqlen, num_keys]
        visible = key < keys
        if problem.causal:
            visible = visible & (distance >= 0)
        if problem.window is not None:
            visible = visible & (distance.abs() < problem.window)
        visible = visible | (row >= queries)  # rows past the end must not be NaN
        self.problem = problem
        self.hidden = ~visible.expand(-1, -1, problem.seqlen, -1)
        self.bias: Any = None
        if problem.alibi:
            slopes = torch.from_numpy(alibi_slopes(problem.num_heads)).to(device)
            self.bias = -slopes[:, None, None] * distance.abs()
        self.sinks: Any = None
        if inputs.sinks is not None:
            shape = (problem.batch, problem.num_heads, problem.seqlen, 1)
            sinks = torch.from_numpy(inputs.sinks).to(device)
            self.sinks = sinks[:, None, None].expand(shape)


def composed_attention(
    given: ComposedScores, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Compute attention with all features of a problem: products in its dtype, scores in FP32."""
    library, problem = _import_torch(), given.problem
    if problem.head_group > 1:
        k, v = (x.repeat_interleave(problem.head_group, dim=1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)).float() * problem.softmax_scale
    if problem.softcap is not None:
        scores = problem.softcap * library.tanh(scores / problem.softcap)
    if given.bias is not None:
        scores = scores + given.bias
    scores = scores.masked_fill(given.hidden, float("-inf"))
    if given.sinks is not None:
        weights = library.softmax(library.cat([scores, given.sinks], -1), -1)[..., :-1]
    else:
        weights = library.softmax(scores, -1)
    return cast("torch.Tensor", weights.to(v.dtype) @ v)


def _attention(problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    attend = _import_torch().nn.functional.scaled_dot_product_attention
    # Passed only if needed, because backends without GQA refuse the flag itself.
    gqa = {"enable_gqa": True} if problem.num_heads_kv is not None else {}
    out: torch.Tensor
    if problem.window is not None:
        out = attend(q, k, v, attn_mask=_visible(problem, q.device), **gqa)
    elif problem.causal and problem.kv_offset:
        # With `is_causal` the first query would see only the first key.
        from torch.nn.attention.bias import causal_lower_right

        mask: Any = causal_lower_right(problem.seqlen, problem.num_keys)
        if q.device.type == "cpu":
            mask = _visible(problem, q.device)
        out = attend(q, k, v, attn_mask=mask, **gqa)
    else:
        out = attend(q, k, v, is_causal=problem.causal, **gqa)
    return out


def _visible(problem: Problem, device: torch.device) -> torch.Tensor:
    """Return the mask of keys that each query sees, `[seqlen, num_keys]`."""
    arange = _import_torch().arange
    position = arange(problem.seqlen, device=device)[:, None] + problem.kv_offset
    keys = arange(problem.num_keys, device=device)
    visible = keys <= position if problem.causal else keys >= 0
    if problem.window is not None:
        visible = visible & ((position - keys).abs() < problem.window)
    mask: torch.Tensor = visible
    return mask


def require_torch_on_gpu() -> Any:
    """Return PyTorch. Raises ToolMissing: it is not installed, or finds no GPU."""
    torch = _import_torch()
    if not torch.cuda.is_available():
        raise ToolMissing(
            f"PyTorch {torch.__version__} finds no CUDA device: a build of PyTorch for CUDA times "
            "its attention as the baseline.",
            code="torch_without_cuda_baseline",
        )
    return torch


def _import_torch() -> Any:
    is_collecting, is_new = gc.isenabled(), "torch" not in sys.modules
    gc.disable()  # importing creates 100,000s of objects, which would trigger it repeatedly in vain
    try:
        import torch

        if is_new:
            gc.freeze()  # modules stay, so later collections can skip them
    except ImportError as error:
        raise ToolMissing(
            "PyTorch is not installed, and its attention is the baseline: pip install torch",
            code="torch_missing",
        ) from error
    finally:
        if is_collecting:
            gc.enable()
    return torch
