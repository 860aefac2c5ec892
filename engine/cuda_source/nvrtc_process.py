"""The NVRTC process that `compiler` starts: `python -m …nvrtc_process SOCKET`."""

from __future__ import annotations

import functools
import os
import resource
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from engine.cuda_source.library import Compile, Compiled, NvrtcError, NvrtcLibrary

_MOST_MEMORY_BYTES = 8 << 30

_library = functools.cache(NvrtcLibrary)


def _serve(asked: Connection, given: Compile) -> None:
    answer: Compiled | str
    try:
        answer = _library(Path(given.library)).compile(given)
    except (MemoryError, NvrtcError, OSError) as error:
        answer = str(error) or type(error).__name__
    asked.send(answer)


def main() -> None:
    """Compile requests until the parent ends, also during a compile."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MOST_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = Connection(int(sys.argv[1]))
    while True:
        try:
            given = asked.recv()
        except (EOFError, OSError):
            os._exit(0)
        # In a thread, so that this one notices the parent's end meanwhile.
        threading.Thread(target=_serve, args=(asked, given), daemon=True).start()


if __name__ == "__main__":
    main()
