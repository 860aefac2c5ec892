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
_imported.set()  # where nothing is prepared nobody waits


def prepare(steps: Sequence[Callable[[], object]] = ()) -> threading.Thread:
    """Begin, without waiting for its end; returns the thread that prepares.

    Args:
        steps: one after the other; without them compilers and the worker are started, which go on
            by themselves, and then the first page is imported.
    """
    _imported.clear()
    steps = steps or (_start_cpu_runtime, _start_worker, _import_first_page)
    thread = threading.Thread(target=_prepare, args=(steps,), daemon=True)
    thread.start()
    return thread


def wait_for_imports() -> None:
    """Before a page is imported: two threads that import one package can lock each other out.

    One holds the package and wants a module of it, the other the module and wants its package;
    Python then ends the import of one of them with an error.
    """
    _imported.wait()


def _prepare(steps: Sequence[Callable[[], object]]) -> None:
    try:
        for step in steps:
            step()
    finally:
        _imported.set()


def _start_cpu_runtime() -> None:
    """Built here, because the worker is seconds away; its own build waits for this one."""
    from engine.base.cxx import find_toolchain
    from engine.cuda_on_host.build import build_runtime

    def build() -> None:
        with contextlib.suppress(AttuneError):  # the first Run says what is missing
            build_runtime(find_toolchain())

    threading.Thread(target=build, daemon=True).start()


def _start_worker() -> None:
    from engine.jobs.manager import manager

    with contextlib.suppress(StoreError):  # the page says so where it matters
        manager().start_worker()


def _import_first_page() -> None:
    """Import what the Tune page is made of: a second that its first run need not take.

    What is there then stays: to look through it for garbage would hold up a page for 0.1 s now and
    then.
    """
    for folder in ("app.shared", "app.evaluation", "app.tune"):
        package = importlib.import_module(folder)
        for module in pkgutil.walk_packages(package.__path__, f"{folder}."):
            importlib.import_module(module.name)
    gc.freeze()
