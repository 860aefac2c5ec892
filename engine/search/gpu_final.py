"""The final on this machine's GPU: the kernels of a sweep's best rows, timed side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from engine.evaluation import Correctness
from engine.measure.local_gpu import gpu_lock, gpu_states
from engine.measure.side_by_side import TimingGroup
from engine.names import find_variant
from engine.plan import make_plan
from engine.search.autotune import OpenCandidates
from engine.search.location import local_gpu_id
from engine.search.race import Candidates
from engine.search.rows import SweepRow
from engine.tensors import make_inputs

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from engine.pipeline.evaluate import Evaluator


def gpu_candidates(
    evaluator: Evaluator, on_wait: Callable[[str], None] = lambda _: None
) -> OpenCandidates:
    """Make rows that passed on this GPU ready for a race; others do not enter it.

    Args:
        evaluator: whose CUDA context is used; it stays the caller's.
        on_wait: gets a sentence about the process whose lock on the GPU is waited for.
    """

    @contextmanager
    def opened(rows: Sequence[SweepRow]) -> Iterator[Candidates]:
        backend = cast("CudaBackend", evaluator.backend("cuda"))
        problem = rows[0].problem
        inputs = make_inputs(problem)
        with (
            gpu_lock(f"the final of {problem.label()}", on_wait),
            gpu_states() as read_state,
            TimingGroup(read_state) as group,
        ):
            here = local_gpu_id()
            for row in rows:
                if row.measured_on not in ("", here):
                    continue
                plan = make_plan(find_variant(row.variant), problem, row.config)
                correctness = _verdict(row.result["correctness"])
                group.add(row.point, partial(backend.timer, plan, inputs, correctness))
            yield group

    return opened


def _verdict(correctness: dict[str, Any]) -> Correctness:
    """The row's verdict as an object; a pass has no findings."""
    return Correctness(**{**correctness, "findings": ()})
