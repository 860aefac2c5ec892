"""`kernel(…)`: one kernel to check, to look at, to predict and to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

from engine.base.errors import InvalidProblem
from engine.config import check_given
from engine.cuda_on_host.options import Schedule
from engine.devices import find_device
from engine.evaluation import Evaluation, Occupancy
from engine.history import Time
from engine.input_kinds import NORMAL, InputKind
from engine.interface.arguments import Sizes, evaluator, problem_of, variant_name
from engine.interface.tensors import read_tensors
from engine.machine_code.report import MachineCode
from engine.model.kernel import Kernel
from engine.names import find_variant
from engine.pipeline.execute import execute
from engine.pipeline.read_machine_code import read_machine_code
from engine.pipeline.request import BackendChoice, EvaluationRequest, resolve
from engine.problem import Problem
from kernels.variant import AUTO, Variant

Tensor = TypeVar("Tensor")


def kernel(name: str | Path, *, gpu: str | None = None, **config: int) -> AttentionKernel:
    """A kernel of the ladder by its name, or a person's own by the path of its `.cu` file.

    Args:
        name: for instance "v08", "my_kernel.cu", or "auto" for the one that is known to be the
            fastest at each problem.
        gpu: the target GPU, for instance "L4"; None: the one in this machine, if it has one.
        config: values of tunables, for instance `block_n=64`; those left out are the tuned ones or
            the defaults.

    Raises:
        UnknownName: no such kernel, file or GPU; the text names the nearest.
        InvalidKernel: the file does not describe itself; `block` is then a description to paste.
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
        find_device(gpu)
    if found != AUTO:
        found = find_variant(found).id
        check_given(find_variant(found), config)
    return AttentionKernel(found, gpu, tuple(config.items()))


@dataclass(frozen=True, slots=True, repr=False)
class AttentionKernel:
    """A kernel, a GPU and values of tunables, to be asked about problems. Made by `kernel`.

    Every method takes the problem by keywords: `batch`, `heads`, `seqlen`, `head_dim`, `causal`,
    `dtype`, `seqlen_kv`, `heads_kv`, `window`, `softcap`, `alibi`, `sinks`, `seqlens` (see `Sizes`
    for what each is where it is left out), or `preset` and what differs from it.
    """

    name: str  # the variant's, or "auto"
    gpu: str | None
    values: tuple[tuple[str, int], ...]  # of the tunables that were given

    def __repr__(self) -> str:
        gpu = f", gpu={self.gpu!r}" if self.gpu is not None else ""
        return f"kernel({self.name!r}{gpu}{''.join(f', {n}={v}' for n, v in self.values)})"

    @property
    def config(self) -> Mapping[str, int]:
        """The values that were given."""
        return dict(self.values)

    @property
    def variant(self) -> Variant | None:
        """What its description says; None for "auto"."""
        return None if self.name == AUTO else find_variant(self.name)

    def on(self, gpu: str) -> AttentionKernel:
        """The same on another GPU. UnknownName where there is none of this name."""
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
        """Compile, execute and judge it against a float64 reference, and say how fast it is.

        An incorrect or failed kernel is no exception: `status` and `reason` say it.

        Args:
            thorough: look for races, accesses out of bounds and uninitialised reads, too, and run
                harsh inputs in another order of threads (the CPU backend, slower).
            backend: "auto" (the GPU where it is the target, else software: see
                `engine.pipeline.execute.where_to_execute`), "cpu", "cuda" or "machine-code".
            schedule: the order of threads on the CPU: "in_order", "random" or "reverse".
            inputs: what Q, K and V hold: see `engine.input_kinds.MEANINGS`.

        Raises:
            InvalidProblem: sizes that cannot be.

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
        """How its main pass fills the GPU, by the real compiler; no GPU needed.

        Raises:
            InvalidProblem: no GPU is named and there is none here, or they do not take the problem.
            CompileError, ToolMissing: it does not compile, or there is no compiler.

        Example:
            >>> import engine as attune
            >>> attune.kernel("v01", gpu="L4").occupancy(batch=4, heads=8).ctas
            64
        """
        kernel, problem = self._at(sizes)
        return kernel.occupancy(problem)

    def predict(self, **sizes: Unpack[Sizes]) -> Time:
        """How long a launch takes on the GPU, by its machine code, with a 90 % interval.

        Always a prediction, also where a time is known that was measured.

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
        """What the compiler made of it: hottest lines, what warps wait for, advice.

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

    def run(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
        """O of one launch on somebody's tensors, executed on the GPU where it is the target, else
        on the CPU. Nothing is checked.

        Args:
            q: `[batch, heads, seqlen, head_dim]`, FP16, BF16 or FP32, of NumPy, PyTorch, CuPy or
                anything else with DLPack. It is copied through the host.
            k, v: `[batch, heads_kv, seqlen_kv, head_dim]`, of the same kind.

        Returns:
            O in the shape, the format and the library of `q`, and on its device.

        Raises:
            InvalidProblem: tensors that do not belong together, or that it cannot be launched with.
            CompileError, ExecutionError: it does not compile, or did not come to its end.

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
            raise InvalidProblem(f"This is of a GPU: name one, for instance gpu='L4'. {why}")
        return resolved.kernel, request.problem
