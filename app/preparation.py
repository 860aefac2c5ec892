"""Prepare the server at its start, while the first visitor's browser still loads the page."""

from __future__ import annotations

import contextlib
import gc
import importlib
import pkgutil
import threading
from collections.abc import Callable, Sequence

from engine.base.errors import AttuneError, StoreError

_imported = threading.Event()
_imported.set()  # set at first: without a preparation nothing waits


def prepare(steps: Sequence[Callable[[], object]] = ()) -> threading.Thread:
    """Start the preparation in a thread, and return the thread.

    Args:
        steps: run one after the other; by default, start compilers and the worker, which continue
            by themselves, and import the first page.
    """
    _imported.clear()
    steps = steps or (_start_cpu_runtime, _start_worker, _import_first_page)
    thread = threading.Thread(target=_prepare, args=(steps,), daemon=True)
    thread.start()
    return thread


def wait_for_imports() -> None:
    """Wait until the preparation's imports are done. Call before a page is imported.

    Two threads that import one package can deadlock, one holding the package's import lock and the
    other a module's; Python then raises an error in one of them.
    """
    _imported.wait()


def _prepare(steps: Sequence[Callable[[], object]]) -> None:
    try:
        for step in steps:
            step()
    finally:
        _imported.set()


def _start_cpu_runtime() -> None:
    """Build the CPU runtime here, because the worker takes seconds to start; its own build waits
    for this one."""
    from engine.base.cxx import find_toolchain
    from engine.cuda_on_host.build import build_runtime

    def build() -> None:
        with contextlib.suppress(AttuneError):  # the first Run reports what is missing
            build_runtime(find_toolchain())

    threading.Thread(target=build, daemon=True).start()


def _start_worker() -> None:
    from engine.jobs.manager import manager

    with contextlib.suppress(StoreError):  # the page reports it
        manager().start_worker()


def _import_first_page() -> None:
    """Import the Tune page's modules, which saves its first run a second.

    Then exclude all objects from garbage collection, which would delay a page by 0.1 s now and
    then.
    """
    for folder in ("app.shared", "app.evaluation", "app.tune"):
        package = importlib.import_module(folder)
        for module in pkgutil.walk_packages(package.__path__, f"{folder}."):
            importlib.import_module(module.name)
    gc.freeze()
