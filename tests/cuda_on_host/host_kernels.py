"""The five test kernels, run through the client, and their expected output."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.attention.tensors import decode, encode
from engine.base.launch_arguments import ScalarArg, TensorArg, TensorMapArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch, RunResult

KERNELS = Path(__file__).parent / "kernels"
HEAD_DIM = 64


@dataclass(frozen=True)
class Attention:
    """Inputs of one attention call as raw bits, [batch, num_heads, seqlen, 64]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    causal: bool
    dtype: str

    @classmethod
    def random(cls, batch=1, num_heads=1, seqlen=64, causal=False, dtype="float16", seed=0):
        rng = np.random.default_rng(seed)
        shape = (batch, num_heads, seqlen, HEAD_DIM)
        raw = (encode(rng.standard_normal(shape, dtype=np.float32), dtype) for _ in range(3))
        return cls(*raw, causal, dtype)

    @property
    def scale(self) -> float:
        return HEAD_DIM**-0.5

    def reference(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (out, log-sum-exp) in float64."""
        q, k, v = (decode(x, self.dtype).astype(np.float64) for x in (self.q, self.k, self.v))
        scores = q @ k.swapaxes(-1, -2) * self.scale
        if self.causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        largest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True)
        return (weights / total) @ v, (largest + np.log(total))[..., 0]


@dataclass(frozen=True)
class Errors:
    result: RunResult
    out: float  # max |error| against float64
    lse: float


def launches(kernel: str, a: Attention, num_splits: int = 4) -> tuple[KernelLaunch, ...]:
    """Return the launches of one of the attention kernels."""
    batch, heads, seqlen, _ = a.q.shape
    tiles = -(-seqlen // 64)
    tensors = tuple(TensorArg(name) for name in ("q", "k", "v", "out", "lse"))
    sizes = (ScalarArg("num_heads", "int32", heads), ScalarArg("seqlen", "int32", seqlen))
    scale = ScalarArg("scale", "float32", a.scale)
    causal = ScalarArg("causal", "int32", int(a.causal))
    grid = (heads, batch, tiles)
    if kernel == "fa1":
        return (KernelLaunch("fa1", grid, (256, 1, 1), (*tensors, *sizes, scale, causal)),)
    if kernel == "fa_mma":
        args = (*tensors, *sizes, scale, causal)
        return (KernelLaunch("fa_mma", grid, (128, 1, 1), args, 5 * 64 * 72 * 2),)
    if kernel == "fa_wgmma":
        rows = batch * heads * seqlen
        maps = tuple(
            TensorMapArg(name, name, (HEAD_DIM, rows), (HEAD_DIM * 2,), (64, 64)) for name in "qkv"
        )
        args = (*maps, *tensors[3:], *sizes, scale, causal)
        return (KernelLaunch("fa_wgmma", grid, (256, 1, 1), args, 5 * 8192 + 64),)
    assert kernel == "fa_split"
    partials = (TensorArg("o_partial"), TensorArg("lse_partial"))
    heads_arg = ScalarArg("heads", "int32", batch * heads)
    splits = ScalarArg("num_splits", "int32", num_splits)
    return (
        KernelLaunch(
            "fa_split_partial",
            (tiles, batch * heads, num_splits),
            (256, 1, 1),
            (*tensors[:3], *partials, heads_arg, sizes[1], splits, scale, causal),
        ),
        KernelLaunch(
            "fa_split_merge",
            (-(-batch * heads * seqlen // 8), 1, 1),
            (256, 1, 1),
            (*partials, *tensors[3:], heads_arg, sizes[1], splits),
        ),
    )


def attention_job(
    kernel: str,
    a: Attention,
    check: bool = False,
    num_splits: int = 4,
    source: Path | None = None,
    **options,
) -> Job:
    """Return a job for `kernel` (or a changed copy of its source)."""
    rows = a.q.size // HEAD_DIM
    passes = launches(kernel, a, num_splits)
    scratch = ()
    if kernel == "fa_split":
        scratch = (
            Buffer("o_partial", size_bytes=num_splits * rows * HEAD_DIM * 4),
            Buffer("lse_partial", size_bytes=num_splits * rows * 4),
        )
    return Job(
        library=build_kernels(
            source or KERNELS / f"{kernel}.cu",
            [launch.entry for launch in passes],
            [("IS_BF16", str(int(a.dtype == "bfloat16")))],
            check,
        ),
        buffers=(
            *(Buffer(name, data=getattr(a, name), read_only=True) for name in "qkv"),
            Buffer("out", size_bytes=a.q.nbytes, returned=True),
            Buffer("lse", size_bytes=rows * 4, returned=True),
            *scratch,
        ),
        launches=passes,
        **options,
    )


def run_attention(client: Client, kernel: str, a: Attention, timeout_s=60.0, **options) -> Errors:
    result = client.run(attention_job(kernel, a, **options), timeout_s)
    if not result.returned:
        return Errors(result, np.inf, np.inf)
    out, lse = a.reference()
    got = decode(result.returned["out"].view(a.q.dtype).reshape(a.q.shape), a.dtype)
    got_lse = result.returned["lse"].view(np.float32).reshape(lse.shape)
    return Errors(result, float(np.abs(got - out).max()), float(np.abs(got_lse - lse).max()))


def tma_job(values, swizzle_bytes=128, row=0, source=None, check=False, **options) -> Job:
    """Negate the first columns of `values` [rows, 64], as many as a swizzled row holds."""
    columns = (swizzle_bytes or 128) // 2
    rows = values.shape[0]
    defines = {
        "IS_BF16": 0,
        "COLUMNS": columns,
        "SWIZZLE_MASK": swizzle_bytes // 16 - 1 if swizzle_bytes else 0,
        "ROW": row,
    }
    maps = tuple(
        TensorMapArg(name, name, (64, rows), (128,), (columns, 64), swizzle_bytes)
        for name in ("values", "negated")
    )
    tiles = -(-rows // 64)
    return Job(
        library=build_kernels(
            source or KERNELS / "tma_negate.cu",
            ["tma_negate"],
            [(name, str(value)) for name, value in defines.items()],
            check,
        ),
        buffers=(
            Buffer("values", data=values, read_only=True),
            Buffer("negated", size_bytes=values.nbytes, returned=True),
            Buffer("second_chunk", size_bytes=16 * tiles, returned=True),
        ),
        launches=(
            KernelLaunch(
                "tma_negate",
                (tiles, 1, 1),
                (128, 1, 1),
                (*maps, TensorArg("second_chunk")),
                64 * columns * 2 + 8,
            ),
        ),
        **options,
    )


def changed_source(folder: Path, kernel: str, marker: str, replacement: str = "") -> Path:
    """Return a copy of `kernel`.cu in which the line that ends in `// marker...` is replaced."""
    for header in KERNELS.glob("*.cuh"):
        shutil.copy(header, folder)
    text = (KERNELS / f"{kernel}.cu").read_text()
    pattern = rf"^.*// {marker}\b.*$"
    assert len(re.findall(pattern, text, re.MULTILINE)) == 1, marker
    path = folder / f"{kernel}.cu"
    path.write_text(re.sub(pattern, replacement, text, flags=re.MULTILINE))
    return path


def line_of(source: Path, marker: str) -> int:
    """Return the number of the only line that contains `// marker`."""
    pattern = re.compile(rf"// {re.escape(marker)}(?!\w)")
    found = [i for i, line in enumerate(source.read_text().splitlines(), 1) if pattern.search(line)]
    assert len(found) == 1, (marker, found)
    return found[0]
