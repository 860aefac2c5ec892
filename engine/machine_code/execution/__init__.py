"""Executes a kernel's machine code on the host, with the values that the GPU would compute."""

from engine.machine_code.execution.run import (
    ExecutionFault,
    ExecutionTimeout,
    GlobalBuffer,
    Hazard,
    Module,
    execute,
    load_module,
)

__all__ = [
    "ExecutionFault",
    "ExecutionTimeout",
    "GlobalBuffer",
    "Hazard",
    "Module",
    "execute",
    "load_module",
]
