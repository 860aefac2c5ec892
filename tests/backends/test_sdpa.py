"""PyTorch's scaled dot product attention as reference and as baseline."""

from __future__ import annotations

import subprocess
import sys
import weakref

import numpy as np
import pytest
from words import raises, says

from engine.attention.problem import Problem
from engine.attention.tensors import Inputs, decode, make_inputs
from engine.backends.sdpa import (
    BACKENDS,
    SdpaTimer,
    baseline,
    baseline_names,
    sdpa_same_dtype,
    to_torch,
    unsupported_reason,
)
from engine.base.errors import MeasureError, ToolMissing
from engine.correctness.gradients import head_gradients, inputs_of
from engine.correctness.reference import reference
from kernels.variant import Dtype

torch = pytest.importorskip("torch")


def exact(inputs: Inputs) -> np.ndarray:
    """Return attention in float64."""
    problem = inputs.problem
    q, k, v = (decode(x, problem.dtype).astype(np.float64) for x in (inputs.q, inputs.k, inputs.v))
    logits = q @ k.swapaxes(-1, -2) * problem.softmax_scale
    if problem.causal:
        logits[..., np.triu(np.ones((problem.seqlen,) * 2, bool), 1)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [4, 32, 64, 96, 128])
def test_sdpa_is_computed_in_its_own_dtype(dtype: Dtype, causal: bool, head_dim: int) -> None:
    inputs = make_inputs(Problem(2, 3, 65, head_dim, causal, dtype), seed=head_dim)
    out, name = sdpa_same_dtype(inputs)
    assert out.dtype == np.float32
    assert out.shape == inputs.problem.shape
    error = np.abs(out - exact(inputs)).max()
    # One unit in the last place at |O| < 4 and what P loses when it is rounded to 16 bits.
    assert error < (3e-3 if dtype == "float16" else 2.5e-2)
    assert error > 0  # it is no float64 in disguise
    assert says(name, "sdpa_name", torch.__version__, dtype, "the CPU")


@pytest.mark.parametrize(("seqlen", "keys"), [(1, 203), (17, 64), (65, 1)])
def test_sdpa_accepts_more_or_fewer_keys_than_queries(seqlen: int, keys: int) -> None:
    inputs = make_inputs(Problem(2, 3, seqlen, 64, seqlen_kv=keys))
    out, _ = sdpa_same_dtype(inputs)
    assert out.shape == (2, 3, seqlen, 64)
    assert np.abs(out - exact(inputs)).max() < 3e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_hold_the_same_bits(dtype: Dtype) -> None:
    inputs = make_inputs(Problem(1, 1, 5, 4, dtype=dtype))
    tensor = to_torch(inputs.q, inputs, "cpu")
    assert tensor.dtype == getattr(torch, dtype)
    bits = tensor.view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bits, inputs.q.view(np.uint16))


def test_read_only_and_strided_arrays_are_taken() -> None:
    inputs = make_inputs(Problem(1, 2, 7, 8))
    expected, _ = sdpa_same_dtype(inputs)
    q = np.asfortranarray(inputs.q)
    q.flags.writeable = False
    found, _ = sdpa_same_dtype(Inputs(inputs.problem, q, inputs.k, inputs.v))
    assert np.array_equal(found, expected)


def test_inputs_are_not_modified() -> None:
    inputs = make_inputs(Problem(1, 2, 33, 32, True))
    before = [x.copy() for x in (inputs.q, inputs.k, inputs.v)]
    sdpa_same_dtype(inputs)
    assert all(
        np.array_equal(x, y) for x, y in zip(before, (inputs.q, inputs.k, inputs.v), strict=True)
    )


@pytest.mark.parametrize(
    "problem",
    [
        Problem(2, 4, 37, 64, True, seqlen_kv=70, num_heads_kv=2, direction="backward"),
        Problem(1, 2, 65, 32, dtype="bfloat16", direction="backward"),
    ],
    ids=Problem.label,
)
def test_backward_gives_the_gradient(problem: Problem) -> None:
    """The baseline of backward kernels is PyTorch's backward pass, here executed on the CPU."""
    inputs = inputs_of(problem)
    found = SdpaTimer("math", problem, inputs, "cpu").attend().double().numpy()
    heads = [head_gradients(inputs, n)["dq"] for n in range(problem.batch * problem.kv_heads)]
    wanted = np.concatenate(heads).reshape(problem.shape)
    largest = np.abs(wanted).max()
    assert np.abs(found - wanted).max() < largest * (4e-3 if problem.dtype == "float16" else 3e-2)
    assert np.abs(found - wanted).max() > 0  # it is no float64 in disguise


def test_missing_torch_gives_a_one_sentence_error(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(Problem(1, 1, 4, 4))
    monkeypatch.setitem(sys.modules, "torch", None)
    with raises(ToolMissing, "torch_missing"):
        sdpa_same_dtype(inputs)
    for name in BACKENDS:
        with (
            raises(ToolMissing, "torch_missing"),
            baseline(name, inputs.problem, inputs),
        ):
            pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_baselines_without_a_gpu_give_a_reason() -> None:
    inputs = make_inputs(Problem(1, 1, 4, 4))
    assert list(BACKENDS) == ["flash", "cudnn", "efficient", "math"]
    for name in BACKENDS:
        with (
            raises(ToolMissing, "torch_without_cuda_baseline", torch.__version__),
            baseline(name, inputs.problem, inputs),
        ):
            pass
    with raises(ToolMissing, "torch_without_cuda"):
        sdpa_same_dtype(inputs, "cuda")


@pytest.mark.parametrize(
    "features",
    [
        {"softcap": 2.0, "causal": True},
        {"alibi": True, "seqlen_kv": 90},
        {"sinks": True, "window": 9, "causal": True},
        {"batch": 3, "seqlens": (70, 1, 40), "causal": True},
        {"batch": 3, "seqlens": (50, 1, 70), "seqlen": 1, "seqlen_kv": 70},
    ],
    ids=str,
)
def test_features_missing_in_sdpa_are_composed(features: dict[str, object]) -> None:
    sizes = {"batch": 2, "num_heads": 4, "num_heads_kv": 2, "seqlen": 70, "head_dim": 32}
    problem = Problem(**sizes | features)
    inputs = make_inputs(problem)
    assert baseline_names(problem) == (*BACKENDS, "composed")
    out = SdpaTimer("composed", problem, inputs, "cpu").attend().float().numpy()
    expected = reference(inputs)
    there = np.abs(expected).sum(-1) > 0
    assert np.abs(out - expected)[there].max() < 4e-3
    with (
        raises(MeasureError, "composed_baseline"),
        baseline("flash", problem, inputs),
    ):
        pass


def test_torch_knows_every_backend_that_is_forced() -> None:
    from torch.nn.attention import SDPBackend

    assert set(BACKENDS.values()) <= set(SDPBackend.__members__)


def test_a_backend_that_refuses_gives_its_reason() -> None:
    inputs = make_inputs(Problem(1, 1, 4, 4))
    timer = SdpaTimer("cudnn", inputs.problem, inputs, "cpu")
    with pytest.raises(RuntimeError) as refused:  # cuDNN does not take tensors of the CPU
        timer.call_us(1)
    found = timer.failed(refused.value)
    assert isinstance(found, MeasureError)
    assert says(str(found), "sdpa_not_timed", "cudnn")
    assert SdpaTimer("math", inputs.problem, inputs, "cpu").call_us(2) > 0


def test_tensors_are_released_before_the_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while emptying the cache does not hide an earlier error."""
    inputs = make_inputs(Problem(1, 1, 4, 4))
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def empty_cache() -> None:
        alive.append(sum(ref() is not None for ref in made))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    with baseline("math", inputs.problem, inputs, "cpu") as timer:
        timer.make_copies(3)
        made += [weakref.ref(x) for copy in timer._copies for x in copy]
    assert len(made) == 9
    assert alive == [0]
    with (
        raises(MeasureError, "made_up"),
        baseline("math", inputs.problem, inputs, "cpu"),
    ):
        raise MeasureError("What really happened.", code="made_up")


def test_the_cause_is_found_among_the_warnings() -> None:
    said = [
        "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:862.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at x:1.)",
        "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:864.)",
        "Flash attention requires q,k,v to have the same last dimension and to be less than or "
        "equal to 256. Got 512 instead. (Triggered internally at sdp_utils.cpp:113.)",
    ]
    why = unsupported_reason("flash", "No available kernel. Aborting execution.", said)
    cause = said[-1].partition(" (Triggered")[0]
    assert says(why, "sdpa_not_timed", "flash", cause)
    assert "No available kernel" not in why
    why = unsupported_reason("math", "CUDA out of memory. Tried\nmore", [])
    assert says(why, "sdpa_not_timed", "math", "CUDA out of memory. Tried")
    assert "more" not in why


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, engine.backends.sdpa; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
