"""Build what is C++ of the project's own, beside the tests that will ask for it.

`tests/conftest.py` starts this as a process with a run of several workers. A test that comes to a
library first waits for it here; without it the app's worker would build it at the lowest priority,
which between two busy workers takes minutes. What cannot be built is said where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from engine.base.cxx import find_toolchain
from engine.base.errors import AttuneError
from engine.cuda_on_host.build import build_runtime, precompile_headers
from engine.machine_code.native_library import build_all
from engine.software_gpu.process_environment import driver_folder


def _runtime_and_headers() -> None:
    build_runtime(find_toolchain())
    precompile_headers()


def _build(what: Callable[[], object]) -> None:
    with suppress(AttuneError):
        what()


if __name__ == "__main__":
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(_build, (_runtime_and_headers, build_all, driver_folder)))
