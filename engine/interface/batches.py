"""`recommend_batch(…)`: which batch fills the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.base.errors import InvalidProblem
from engine.batch.recommend import recommend_for_choice
from engine.batch.types import BatchRequest, BatchResult
from engine.interface.arguments import dtype_of, evaluator
from engine.interface.attention_kernel import AttentionKernel, kernel


def recommend_batch(
    of: AttentionKernel | str | Path,
    *,
    gpu: str | None = None,
    seqlen: int,
    head_dim: int = 64,
    targets: Sequence[float] = (0.7, 0.9, 0.95),
    dtype: str | None = None,
    **options: Any,
) -> BatchResult:
    """The smallest batch that reaches a share of the highest throughput, why, and at which memory.

    Args:
        of: a kernel, its name, its file, or "auto".
        gpu: the GPU, where `of` does not say it.
        seqlen, head_dim: of each request.
        targets: shares of the highest throughput, 0 to 1, rising.
        options: further fields of `engine.batch.BatchRequest`: `heads`, `causal`, `seqlen_kv`,
            `heads_kv`, `max_batch`, `measured` (a CSV of times to calibrate on), `prices`, …

    Raises:
        InvalidProblem: no GPU is named, or as `engine.batch.recommend.recommend_batch`.
        UnknownName, InvalidKernel: as `kernel`.
        CompileError, ToolMissing: it does not compile, or there is no compiler.

    Example:
        >>> import engine as attune
        >>> found = attune.recommend_batch("v01", gpu="L4", seqlen=64, head_dim=32, max_batch=512)
        >>> [r.target for r in found.recommendations]
        [0.7, 0.9, 0.95]
        >>> found.recommended.origin
        'predicted'
        >>> found.to_frame()["batch"].max()
        np.int64(512)
    """
    asked = of if isinstance(of, AttentionKernel) else kernel(of)
    target = gpu or asked.gpu
    if target is None:
        raise InvalidProblem("A batch is recommended for a GPU: name one, for instance gpu='L4'.")
    try:
        request = BatchRequest(
            variant=asked.name,
            gpu=target,
            seqlen=seqlen,
            head_dim=head_dim,
            dtype=dtype_of(dtype, asked.variant),
            config=asked.config,
            targets=tuple(targets),
            **options,
        )
    except TypeError as error:
        raise InvalidProblem(f"recommend_batch: {error}.") from None
    return recommend_for_choice(request, evaluator().history)
