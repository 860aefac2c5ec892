"""The stand-in for CuPy against CuPy: the same signatures, and as strict as CUDA."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_gpu import CudaError, FakeGpu
from fake_kernels import gpu_with

from engine.backends.cuda.cupy_calls import CupyCalls

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

GPU = FakeGpu({})
CUDA = cupy.cuda
FAKE = GPU.cupy.cuda
# What stands in for what. `cupy.cuda.Stream` and the like inherit their methods.
PAIRS: dict[str, tuple[Callable[..., Any], Any]] = {
    **{
        f"runtime.{name}": (getattr(FAKE.runtime, name), getattr(CUDA.runtime, name))
        for name in vars(fake_cupy.FakeRuntime)
        if callable(getattr(FAKE.runtime, name)) and name[0] not in "_C"
    },
    **{
        f"driver.{name}": (getattr(FAKE.driver, name), getattr(CUDA.driver, name))
        for name in ("funcSetAttribute", "occupancyMaxActiveBlocksPerMultiprocessor")
    },
    "alloc": (FAKE.alloc, CUDA.alloc),
    "get_elapsed_time": (FAKE.get_elapsed_time, CUDA.get_elapsed_time),
    **{
        f"{real.__name__}.{name}": (getattr(fake, name), getattr(real, name))
        for fake, real, names in (
            (fake_cupy.FakeStream, CUDA.Stream, "synchronize begin_capture end_capture"),
            (fake_cupy.FakeEvent, CUDA.Event, "record synchronize"),
            (fake_cupy.FakeModule, CUDA.function.Module, "load get_function"),
            (fake_cupy.FakeGraph, CUDA.graph.Graph, "launch upload"),
            (fake_cupy.FakePool, CUDA.MemoryPool, "free_all_blocks"),
        )
        for name in names.split()
    },
}


def parameters(function: Callable[..., Any]) -> list[tuple[str, bool]]:
    """(name, has it a default) of each; of compiled functions from the line of their docstring."""
    try:
        found = inspect.signature(function).parameters.values()
        listed = [(p.name, p.default is not p.empty) for p in found]
    except ValueError:
        match = re.match(r"[\w.]+\((.*?)\)", function.__doc__ or "")
        assert match, f"{function} does not say its signature"
        texts = [text.strip() for text in match[1].split(",") if text.strip()]
        listed = [(text.partition("=")[0].split()[-1], "=" in text) for text in texts]
    return [each for each in listed if each[0] != "self"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_signature_is_cupys(name: str) -> None:
    fake, real = PAIRS[name]
    assert parameters(fake) == parameters(real)


@pytest.mark.parametrize(
    ("fake", "real"), [(fake_cupy.FakeStream, CUDA.Stream), (fake_cupy.FakeEvent, CUDA.Event)]
)
def test_a_constructor_is_cupys(fake: type, real: type) -> None:
    ours = [each for each in parameters(fake.__init__) if each[0] != "gpu"]
    assert ours == parameters(real.__init__)


def test_a_launch_takes_what_cupys_takes() -> None:
    """Its signature is compiled away, so it is called: refused by CUDA is not refused by Python."""
    real = CUDA.function.Function.__new__(CUDA.function.Function)
    arguments = (np.uint64(0), np.int32(1), np.float32(1.0))
    with pytest.raises(RuntimeError):
        real((1, 1, 1), (32, 1, 1), arguments, 0, stream=None)
    with pytest.raises(TypeError, match="unexpected keyword"):
        real((1, 1, 1), (32, 1, 1), arguments, 0, streams=None)
    taken = list(inspect.signature(fake_cupy.FakeFunction.__call__).parameters)[1:]
    assert taken == ["grid", "block", "args", "shared_mem", "stream"]
    for name in taken[3:]:
        with pytest.raises(RuntimeError):
            real((1, 1, 1), (32, 1, 1), arguments, **{name: 0 if name == "shared_mem" else None})


def test_constants_have_cupys_values() -> None:
    for fake, real in ((FAKE.runtime, CUDA.runtime), (FAKE.driver, CUDA.driver)):
        names = [n for n, value in vars(type(fake)).items() if isinstance(value, int)]
        assert names
        assert {n: getattr(fake, n) for n in names} == {n: getattr(real, n) for n in names}


def test_a_query_gives_a_status_and_does_not_raise() -> None:
    assert isinstance(CUDA.runtime.streamQuery(0), int)
    gpu = gpu_with()
    gpu._dead = 700
    assert gpu.query() == 700


FORBIDDEN: dict[str, Callable[[CupyCalls, int], object]] = {
    "wait": lambda calls, _: calls.wait(),
    "read": lambda calls, address: calls.read(address, 8),
    "write": lambda calls, address: calls.write(address, np.zeros(1)),
    "poison": lambda calls, address: calls.fill(address, 8, np.uint16(0x7FA5)),
    "free_bytes": lambda calls, _: calls.free_bytes(),
    "replay": lambda calls, _: calls.elapsed_us(lambda: None),
    "capture": lambda calls, _: calls.capture(lambda: None),
    "close": lambda calls, _: calls.close(),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_waits_spoils_a_capture(name: str) -> None:
    calls = gpu_with().calls()
    address = calls.alloc(8)
    with pytest.raises(CudaError) as refused:
        calls.capture(lambda: FORBIDDEN[name](calls, address))
    assert refused.value.status == 900
    calls.wait()  # the stream is of use again
    calls.discard(calls.capture(lambda: calls.fill(address, 8, np.uint16(0))))


def test_a_spoilt_capture_gives_no_graph() -> None:
    calls = gpu_with().calls()

    def ignores_the_error() -> None:
        with pytest.raises(CudaError):
            calls.wait()

    with pytest.raises(CudaError) as refused:
        calls.capture(ignores_the_error)
    assert refused.value.status == 901


def test_memory_is_freed_once() -> None:
    calls = gpu_with().calls()
    address = calls.alloc(8)
    calls.free(address)
    for unknown in (address, 12345):
        with pytest.raises(KeyError):
            calls.free(unknown)


def test_copies_are_queued_like_everything_else() -> None:
    gpu = gpu_with()
    calls = gpu.calls()
    a, b = calls.alloc(8), calls.alloc(8)
    calls.write(a, np.arange(8, dtype=np.uint8))
    graph = calls.capture(lambda: calls.copy(b, a, 8))
    calls.write(a, np.full(8, 9, np.uint8))
    assert not (calls.read(b, 8) == 9).any()
    calls.replay_us(graph)
    assert (calls.read(b, 8) == 9).all()
    # What was captured goes where it went then.
    calls.free(b)
    with pytest.raises(CudaError) as stray:
        calls.replay_us(graph)
    assert stray.value.status == 700
    calls.abandon()


def test_a_destructor_that_would_wait_or_raise_is_noticed() -> None:
    gpu = gpu_with()
    module = GPU.cupy.cuda.function.Module()
    del module  # nothing was loaded
    calls = gpu.calls()
    graph = calls.capture(lambda: None)
    gpu._dead = 700
    calls.discard(graph)
    del graph
    assert gpu.violations == ["cudaGraphExecDestroy raises from a destructor"]
    gpu.violations.clear()
