"""`kernel(…)`: check, analyse and predict one kernel, and run it on your own tensors."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, get_args

import numpy as np

from engine.attention.config import (
    check_given,
    find_variant,
    usual_causal,
    usual_dtype,
    usual_head_dim,
)
from engine.attention.evaluation import Evaluation, Occupancy
from engine.attention.problem import KV_DTYPES, KvDtype, Problem, find_preset
from engine.attention.tensors import NORMAL, InputKind, Inputs, RawArray
from engine.base.errors import InvalidProblem, UnknownName, unknown
from engine.cuda_on_host.client import Schedule
from engine.devices import find_device
from engine.history import Time
from engine.machine_code.launch_report import MachineCode
from engine.model.kernel import Kernel
from engine.own_kernels.registry import kernel_named
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.execute import execute
from engine.pipeline.request import BackendChoice, EvaluationRequest, resolve
from engine.pipeline.simulated_launches import read_machine_code
from engine.sessions.known_times import open_history
from kernels.variant import AUTO, DTYPES, Dtype, Variant

# Arguments that the interface functions share: a problem, a kernel's name, keywords.

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Sizes(TypedDict, total=False):
    """A problem by keywords. Q is `[batch, heads, seqlen, head_dim]`."""

    preset: str  # a named shape, as `--preset`; other keywords override its values
    batch: int  # default 1
    heads: int  # 1
    seqlen: int  # 128
    head_dim: int  # default 64, or the first that the kernel supports
    causal: bool  # False
    dtype: str  # "fp16", "bf16" or "fp32"; default fp16, or the first that the kernel supports
    seqlen_kv: int | None  # length of K and V if it differs, as in decoding
    heads_kv: int | None  # heads of K and V if query heads share them
    head_dim_v: int | None  # columns of V and O if K has another number
    kv_dtype: str | None  # "fp8" if K and V are in FP8
    # See `engine.attention.problem.Problem` for what these mean.
    window: int | None
    softcap: float | None
    alibi: bool
    sinks: bool
    lse: bool
    seqlens: tuple[int, ...] | None  # with it, batch and lengths may be left out


def check_keywords(given: Iterable[str], known: Collection[str]) -> None:
    """Raise UnknownName for the first unknown keyword, with the nearest names."""
    for name in given:
        if name not in known:
            raise unknown("keyword", name, known)


def check_choice(what: str, given: object, kind: Any) -> None:
    """Raise UnknownName for a value that the literal type lacks, with the nearest ones."""
    known = get_args(kind)
    if given not in known:
        raise unknown(what, str(given), known)


def check_number(name: str, given: object, *, least: float, whole: bool = False) -> None:
    """Raise InvalidProblem for anything but a number of at least `least`."""
    kind = "a whole number" if whole else "a number"
    is_one = isinstance(given, int if whole else int | float) and not isinstance(given, bool)
    if not is_one or not given >= least:  # type: ignore[operator]
        raise InvalidProblem(
            f"{name} is {kind} of {least:g} or more, not {given!r}.", code="number_of_an_option"
        )


def named_keywords(*further: str) -> Callable[[Callable[Given, Answer]], Callable[Given, Answer]]:
    """Decorate a function to report unknown keywords by `check_keywords`.

    Args:
        further: keywords in addition to those of the signature.
    """

    def wrap(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
        own = [p.name for p in signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]

        @wraps(function)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            check_keywords(kwargs, [*own, *further])
            return function(*args, **kwargs)

        return called

    return wrap


def problem_of(sizes: Sizes, variant: Variant | None = None) -> Problem:
    """Return the problem that the keywords describe.

    Raises:
        InvalidProblem, UnknownName: invalid sizes, or an unknown preset or keyword.
    """
    check_keywords(sizes, Sizes.__annotations__)
    if (preset := sizes.get("preset")) is not None:
        return _changed(find_preset(preset).problem, sizes)
    lengths = sizes.get("seqlens")
    longest = max(lengths) if lengths else None
    return Problem(
        batch=sizes.get("batch", len(lengths) if lengths else 1),
        num_heads=sizes.get("heads", 1),
        seqlen=sizes.get("seqlen", longest or 128),
        head_dim=sizes.get("head_dim", usual_head_dim(variant)),
        causal=sizes.get("causal", variant is not None and usual_causal([variant])),
        dtype=dtype_of(sizes.get("dtype"), *([variant.id] if variant is not None else [])),
        seqlen_kv=sizes.get("seqlen_kv", longest),
        num_heads_kv=sizes.get("heads_kv"),
        window=sizes.get("window"),
        softcap=sizes.get("softcap"),
        alibi=sizes.get("alibi", False),
        sinks=sizes.get("sinks", False),
        lse=sizes.get("lse", False),
        seqlens=lengths,
        head_dim_v=sizes.get("head_dim_v"),
        kv_dtype=_kv_dtype_of(sizes.get("kv_dtype")),
    )


def _kv_dtype_of(name: str | None) -> KvDtype | None:
    if name is not None and name not in KV_DTYPES:
        raise InvalidProblem(f"kv_dtype must be fp8 or None, not {name!r}.")
    return None if name is None else KV_DTYPES[name]


def _changed(preset: Problem, sizes: Sizes) -> Problem:
    names = {"heads": "num_heads", "heads_kv": "num_heads_kv"}
    given: dict[str, Any] = {names.get(n, n): x for n, x in sizes.items() if n != "preset"}
    if "dtype" in sizes:
        given["dtype"] = dtype_of(sizes["dtype"])
    if "kv_dtype" in sizes:
        given["kv_dtype"] = _kv_dtype_of(sizes["kv_dtype"])
    if sizes.get("seqlens"):
        longest = max(sizes["seqlens"] or ())
        given = {"batch": len(sizes["seqlens"] or ()), "seqlen_kv": longest} | given
        given.setdefault("seqlen", longest)
    elif {"batch", "seqlen", "seqlen_kv"} & set(given):
        given.setdefault("seqlens", None)  # the preset's lengths belong to its batch
    if "num_heads" in given and "num_heads_kv" not in given:
        # With another number of heads, the preset's K/V heads do not apply.
        given["num_heads_kv"] = None
    return replace(preset, **given)


def dtype_of(name: str | None, *variants: str) -> Dtype:
    """Return the format with this name, or the usual one of these variants. Raises
    InvalidProblem for an unknown name."""
    if name is None:
        return usual_dtype(variants)
    if name not in DTYPES:
        raise InvalidProblem(
            f"dtype is one of {', '.join(sorted(DTYPES))}, not {name!r}.", code="dtype_name"
        )
    return DTYPES[name]


def variant_name(kernel: str | Path) -> str:
    """Return `kernel_named`; a path may also be a `Path`.

    Raises:
        UnknownName, InvalidKernel: as `kernel_named`, or it is neither text nor path.
    """
    if not isinstance(kernel, str | Path):
        raise UnknownName(
            f"A kernel is named by a text or a path, not by {type(kernel).__name__}: give 'v08' "
            "or 'my.cu'.",
            code="kernel_of_no_name",
        )
    return kernel_named(str(kernel) if isinstance(kernel, str) else str(kernel.expanduser()))


@cache
def evaluator() -> Evaluator:
    """Return the evaluator of this process, whose child processes are reused."""
    made = Evaluator(open_history())
    atexit.register(made.close)
    return made


# The user's tensors as Q, K and V, and O as a tensor of the same library: NumPy, PyTorch, CuPy.


@dataclass(frozen=True, slots=True)
class Tensors:
    """Q, K and V on the host, and the tensor whose library, format and device O gets."""

    inputs: Inputs
    like: Any

    @property
    def problem(self) -> Problem:
        """Return the problem of the inputs."""
        return self.inputs.problem

    def write(self, out: RawArray) -> Any:
        """Return O as a tensor of the library, format and device of `like`."""
        if _library(self.like) == "torch":
            import torch

            made = torch.from_numpy(out.copy())
            return made.view(self.like.dtype).to(self.like.device)
        if _library(self.like) == "cupy":
            import cupy

            return cupy.asarray(out).view(self.like.dtype)
        return out.view(self.like.dtype) if isinstance(self.like, np.ndarray) else out


def read_tensors(q: Any, k: Any, v: Any, *, causal: bool) -> Tensors:
    """Return the tensors as the inputs of a problem.

    Args:
        q: `[batch, heads, seqlen, head_dim]`; any object with DLPack, FP16, BF16 or FP32.
        k, v: `[batch, heads_kv, seqlen_kv, head_dim]`.

    Raises:
        InvalidProblem: not a four-dimensional tensor, an unsupported format, or inconsistent
            shapes.
    """
    read = {name: _read(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    formats = {name: dtype for name, (_, dtype) in read.items()}
    if len(set(formats.values())) > 1:
        told = ", ".join(f"{name} {dtype}" for name, dtype in formats.items())
        raise InvalidProblem(f"q, k and v have one format, not {told}.", code="tensor_formats")
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
                f"{list(shape)}: [batch, heads, seqlen, head_dim].",
                code="tensor_shape",
            )
    return Tensors(Inputs(problem, raw["q"], raw["k"], raw["v"]), q)


def _read(name: str, tensor: Any) -> tuple[Any, Dtype]:
    """Return the raw array on the host, contiguous, and its format."""
    library = _library(tensor)
    dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if dtype not in get_args(Dtype):
        raise InvalidProblem(
            f"{name} is {dtype}: give a tensor of float16, bfloat16 or float32 by NumPy, PyTorch, "
            "CuPy or another library with DLPack.",
            code="tensor_type",
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
            f"{name} has {array.ndim} dimensions: give [batch, heads, seqlen, head_dim].",
            code="tensor_dimensions",
        )
    # NumPy has no bfloat16: use its bit patterns.
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


Tensor = TypeVar("Tensor")


def kernel(name: str | Path, *, gpu: str | None = None, **config: int) -> AttentionKernel:
    """Return a kernel of the ladder by name, or an own kernel by the path of its `.cu` file.

    Args:
        name: for instance "v08", "my_kernel.cu", or "auto" for the fastest known kernel for each
            problem.
        gpu: the target GPU, for instance "L4"; None: this machine's GPU, if it has one.
        config: values of tunables, for instance `block_n=64`; others are tuned or default values.

    Raises:
        UnknownName: no such kernel, file or GPU; the text names the nearest.
        InvalidKernel: the file has no description; `block` is then a description to paste.
        InvalidProblem: a tunable or a value that the kernel does not offer.

    Example:
        >>> import engine as attune
        >>> attune.kernel("v01", gpu="L4", block_n=64)
        kernel('v01', gpu='L4', block_n=64)
        >>> attune.kernel("v99")
        Traceback (most recent call last):
            ...
        engine.base.errors.UnknownName: There is no variant called 'v99': did you mean v19, v09?
    """
    found = variant_name(name)
    if gpu is not None:
        find_device(str(gpu))
    if found != AUTO:
        found = find_variant(found).id
        check_given(find_variant(found), config)
    return AttentionKernel(found, gpu, tuple(config.items()))


@dataclass(frozen=True, slots=True, repr=False)
class AttentionKernel:
    """A kernel with a GPU and values of tunables, created by `kernel`.

    Every method takes the problem by keywords: `batch`, `heads`, `seqlen`, `head_dim`, `causal`,
    `dtype`, `seqlen_kv`, `heads_kv`, `window`, `softcap`, `alibi`, `sinks`, `lse`, `seqlens`
    (see `Sizes` for their defaults), or `preset` and the values that differ from it.
    """

    name: str  # the variant's, or "auto"
    gpu: str | None
    values: tuple[tuple[str, int], ...]  # of the given tunables

    def __repr__(self) -> str:
        gpu = f", gpu={self.gpu!r}" if self.gpu is not None else ""
        return f"kernel({self.name!r}{gpu}{''.join(f', {n}={v}' for n, v in self.values)})"

    @property
    def config(self) -> Mapping[str, int]:
        """Return the given values."""
        return dict(self.values)

    @property
    def variant(self) -> Variant | None:
        """Return the kernel's variant; None for "auto"."""
        return None if self.name == AUTO else find_variant(self.name)

    def on(self, gpu: str) -> AttentionKernel:
        """Return a copy for another GPU. Raises UnknownName for an unknown name."""
        find_device(gpu)
        return replace(self, gpu=gpu)

    def check(
        self,
        *,
        thorough: bool = False,
        backend: BackendChoice = "auto",
        schedule: Schedule = "in_order",
        seed: int = 0,
        inputs: InputKind = NORMAL,
        timeout_s: float = 60.0,
        **sizes: Unpack[Sizes],
    ) -> Evaluation:
        """Compile and execute the kernel, compare it with a float64 reference, and measure or
        predict its time.

        An incorrect or failed kernel raises nothing: see `status` and `reason`.

        Args:
            thorough: look for races, accesses out of bounds and uninitialised reads, too, and run
                extreme inputs in another order of threads (the CPU backend, slower).
            backend: "auto" (the GPU where it is the target, else software: see
                `engine.pipeline.execute.where_to_execute`), "cpu", "cuda" or "machine-code".
            schedule: the order of threads on the CPU: "in_order", "random" or "reverse".
            inputs: contents of Q, K and V: see `engine.attention.tensors.MEANINGS`.

        Raises:
            InvalidProblem: an invalid size, seed or limit.
            UnknownName: an unknown backend or order.

        Example:
            >>> import engine as attune
            >>> done = attune.kernel("v01", gpu="L4").check(seqlen=70, head_dim=32)
            >>> str(done.status), done.latency.origin
            ('PASSED', 'predicted')
            >>> done.correctness.max_abs_err <= done.correctness.tolerance
            True
            >>> done.to_frame()["problem"].item()
            'B1 H1 S70 D32 fp16'
        """
        check_choice("backend", backend, BackendChoice)
        check_choice("schedule", schedule, Schedule)
        check_number("seed", seed, least=0, whole=True)
        check_number("timeout_s", timeout_s, least=0.1)
        request = replace(
            self._request(sizes),
            check=thorough,
            backend=backend,
            schedule=schedule,
            seed=seed,
            input_kind=inputs,
            timeout_s=timeout_s,
        )
        return evaluator().evaluate(request).evaluation

    def occupancy(self, **sizes: Unpack[Sizes]) -> Occupancy:
        """Return the occupancy of the main pass, from the real compiler; no GPU needed.

        Raises:
            InvalidProblem: no GPU is named and there is none here, or kernel or GPU do not support
                the problem.
            CompileError, ToolMissing: it does not compile, or there is no compiler.

        Example:
            >>> import engine as attune
            >>> attune.kernel("v01", gpu="L4").occupancy(batch=4, heads=8).ctas
            64
        """
        kernel, problem = self._at(sizes)
        return kernel.occupancy(problem)

    def predict(self, **sizes: Unpack[Sizes]) -> Time:
        """Predict the time of a launch from its machine code, with a 90 % interval.

        The result is a prediction even if a measured time is known.

        Raises:
            InvalidProblem: as `occupancy`, or the GPU's figures are not known.
            CompileError, ToolMissing: as `occupancy`.

        Example:
            >>> import engine as attune
            >>> time = attune.kernel("v01", gpu="L4").predict(seqlen=64, head_dim=32)
            >>> time.origin, time.method
            ('predicted', 'machine code')
            >>> time.low_us < time.us < time.high_us
            True
        """
        kernel, problem = self._at(sizes)
        made = evaluator().history.estimate(kernel, problem)
        if (time := Time.predicted(made)) is None:
            raise InvalidProblem(made.reason)
        return time

    def machine_code(self, **sizes: Unpack[Sizes]) -> MachineCode:
        """Analyse the compiled machine code: hottest lines, stalls of warps, advice.

        Raises:
            As `predict`.

        Example:
            >>> import engine as attune
            >>> code = attune.kernel("v01", gpu="L4").machine_code(seqlen=64, head_dim=32)
            >>> code.arch, len(code.passes)
            ('sm_89', 1)
            >>> "warp instructions" in code.tables()[1].columns
            True
        """
        return read_machine_code(self._request(sizes), evaluator().history)

    @named_keywords()
    def run(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
        """Return O of one launch on given tensors, executed on the GPU if it is the target, else on
        the CPU. Nothing is checked.

        Args:
            q: `[batch, heads, seqlen, head_dim]`, FP16, BF16 or FP32, of NumPy, PyTorch, CuPy or
                anything else with DLPack. It is copied through the host.
            k, v: `[batch, heads_kv, seqlen_kv, head_dim]`, of the same kind.

        Returns:
            O in the shape, the format and the library of `q`, and on its device.

        Raises:
            InvalidProblem: inconsistent tensors, or tensors with which it cannot be launched.
            CompileError, ExecutionError: it does not compile, or the launch did not finish.

        Example:
            >>> import numpy as np, engine as attune
            >>> q, k, v = np.random.default_rng(0).random((3, 1, 2, 70, 32)).astype(np.float16)
            >>> attune.kernel("v01").run(q, k, v, causal=True).shape
            (1, 2, 70, 32)
        """
        tensors = read_tensors(q, k, v, causal=causal)
        request = EvaluationRequest(self.name, tensors.problem, self.config, gpu=self.gpu)
        made: Any = tensors.write(execute(evaluator(), request, tensors.inputs))
        return made  # type: ignore[no-any-return]

    def _request(self, sizes: Sizes) -> EvaluationRequest:
        problem = problem_of(sizes, self.variant)
        return EvaluationRequest(self.name, problem, self.config, gpu=self.gpu)

    def _at(self, sizes: Sizes) -> tuple[Kernel, Problem]:
        request = self._request(sizes)
        resolved = resolve(request, evaluator().history)
        if resolved.kernel is None:
            why = resolved.device_reason
            raise InvalidProblem(
                f"This needs a GPU: name one, for instance gpu='L4'. {why}", code="gpu_not_named"
            )
        return resolved.kernel, request.problem
