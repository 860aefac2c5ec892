"""Attune: correctness, occupancy and speed of CUDA attention kernels.

    >>> import engine as attune
    >>> k = attune.kernel("v01", gpu="L4", block_n=64)
    >>> str(k.check(seqlen=70, head_dim=32).status)
    'PASSED'

The names in `__all__` are the public interface. Each is imported at first use, so that `import
engine` takes a few milliseconds. Errors are raised as `AttuneError` with a one-sentence message.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine import testing
    from engine.attention.evaluation import Evaluation, Occupancy
    from engine.attention.problem import Problem
    from engine.base.errors import (
        AttuneError,
        BadInput,
        CompileError,
        ExecutionError,
        InvalidKernel,
        InvalidProblem,
        Status,
        ToolMissing,
        UnknownName,
    )
    from engine.base.table import Table
    from engine.choose.batch.mix import MixResult
    from engine.choose.batch.types import BatchResult
    from engine.history import Time
    from engine.interface.attention_kernel import AttentionKernel, kernel
    from engine.interface.functions import (
        Comparison,
        SweepResult,
        compare,
        recommend_batch,
        recommend_mix,
        sweep,
    )
    from engine.machine_code.launch_report import MachineCode

    __version__: str

# Where the public names stand.
_NAMES = {
    "engine.base.errors": "AttuneError BadInput CompileError ExecutionError InvalidKernel "
    "InvalidProblem Status ToolMissing UnknownName",
    "engine.base.table": "Table",
    "engine.choose.batch.mix": "MixResult",
    "engine.choose.batch.types": "BatchResult",
    "engine.attention.evaluation": "Evaluation Occupancy",
    "engine.history": "Time",
    "engine.interface.attention_kernel": "AttentionKernel kernel",
    "engine.interface.functions": "recommend_batch recommend_mix Comparison compare SweepResult "
    "sweep",
    "engine.machine_code.launch_report": "MachineCode",
    "engine.attention.problem": "Problem",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AttentionKernel",
    "AttuneError",
    "BadInput",
    "BatchResult",
    "Comparison",
    "CompileError",
    "Evaluation",
    "ExecutionError",
    "InvalidKernel",
    "InvalidProblem",
    "MachineCode",
    "MixResult",
    "Occupancy",
    "Problem",
    "Status",
    "SweepResult",
    "Table",
    "Time",
    "ToolMissing",
    "UnknownName",
    "__version__",
    "compare",
    "kernel",
    "recommend_batch",
    "recommend_mix",
    "sweep",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("engine.testing")
    if name == "__version__":
        return import_module("engine.base.files").version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__]
