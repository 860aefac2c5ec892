"""What a server gets ready at its start, while the first visitor's browser still loads the page."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import threading

from engine.errors import AttuneError, StoreError


def prepare() -> None:
    """Begin, without waiting for its end."""
    threading.Thread(target=_prepare, daemon=True).start()


def _prepare() -> None:
    """In the order in which others can go on by themselves: compilers, the worker, this process."""
    threading.Thread(target=_build_cpu_runtime, daemon=True).start()
    _start_worker()
    _import_first_page()


def _build_cpu_runtime() -> None:
    """Built here, because the worker is seconds away; its own build waits for this one."""
    from engine.backends.cpu.build import build_runtime
    from engine.backends.cpu.toolchain import find_toolchain

    with contextlib.suppress(AttuneError):  # the first Run says what is missing
        build_runtime(find_toolchain())


def _start_worker() -> None:
    from engine.jobs.manager import manager

    with contextlib.suppress(StoreError):  # the page says so where it matters
        manager().start_worker()


def _import_first_page() -> None:
    """Import what the Tune page is made of: a second that its first run need not take."""
    for folder in ("app.shared", "app.evaluation", "app.tune"):
        package = importlib.import_module(folder)
        for module in pkgutil.walk_packages(package.__path__, f"{folder}."):
            importlib.import_module(module.name)
