"""Build the project's C++ libraries in a process beside the tests.

`tests/conftest.py` starts it in runs with several workers. A test that needs a library earlier
waits for this process; otherwise the app's worker would build it at the lowest priority, which
takes minutes beside two busy workers. A failed build is reported by the test that needs it.
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
