"""How a process ends that can no longer give its CUDA objects back.

While a kernel runs that never ends, unloading a module, freeing memory and destroying the context
all wait for it, and so would the interpreter's own shutdown. After a sticky error they raise from
destructors. Such a process keeps its objects and leaves without running destructors; the driver
then stops the kernel and takes everything back.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

# A call that only waits for work that was already seen to end returns in far less.
STUCK_AFTER_S = 120.0

_kept: list[object] = []  # what must not be destroyed before the process ends


def keep_until_exit(objects: object, end: Callable[[], object] | None = None) -> None:
    """Hold on to CUDA objects for the rest of the process, and leave it without destructors.

    Args:
        end: called at the interpreter's exit; `end_process` where not given.
    """
    if not _kept:
        atexit.register(end or end_process)
    _kept.append(objects)


def end_process(code: int = 1) -> NoReturn:
    """Leave now, without destructors and other exit handlers. Standard streams are flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_stuck_process(what: str) -> NoReturn:
    """Say which CUDA call does not come back, and leave."""
    with contextlib.suppress(OSError, ValueError):
        print(
            f"error: The CUDA call {what} has not come back for {STUCK_AFTER_S:g} s, so a kernel "
            "probably runs for ever: this process ends, and the driver stops the kernel with it.",
            file=sys.stderr,
        )
    end_process()


@contextmanager
def watchdog(
    what: str,
    limit_s: float = STUCK_AFTER_S,
    on_stuck: Callable[[str], object] = end_stuck_process,
) -> Iterator[None]:
    """End the process when the body, one CUDA call that may block, takes longer than `limit_s`.

    Costs about 0.1 ms, so it does not stand around what is timed.
    """
    timer = threading.Timer(limit_s, on_stuck, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
