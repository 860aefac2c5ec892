"""Headers of the host's libraries in a kernel's source: NVRTC has none of them.

Those of the C and C++ standard libraries become `headers/standard.h`, which holds what device code
uses of them, the driver's `headers/driver.h`; those of libraries that only host code uses become
empty.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent / "headers"
_NAME: Final = "attune/standard.h"
_DRIVER: Final = "cuda.h"

# Those whose contents device code may use.
FOR_DEVICE: Final = frozenset(
    f"{name}{ending}"
    for name, ending in (
        *((n, ".h") for n in ("assert", "float", "limits", "math", "stddef", "stdint")),
        *((n, ".h") for n in ("stdio", "stdlib", "string", "inttypes", "stdbool")),
        *((f"c{n}", "") for n in ("assert", "float", "limits", "math", "stddef", "stdint")),
        *((f"c{n}", "") for n in ("stdio", "stdlib", "string", "inttypes")),
        *((n, "") for n in ("algorithm", "limits", "type_traits", "utility", "numeric")),
    )
)
_HOST_STANDARD = frozenset(
    "array atomic bitset chrono complex condition_variable deque exception execution filesystem "
    "fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator list "
    "locale map memory memory_resource mutex new numbers optional ostream queue random ratio regex "
    "set span sstream stack stdexcept streambuf string string_view system_error thread tuple "
    "typeindex typeinfo unordered_map unordered_set valarray variant vector ctime cerrno errno.h "
    "time.h unistd.h getopt.h sys/time.h omp.h".split()
)
_HOST_LIBRARY = re.compile(
    r"(?:torch|ATen|c10|pybind11|gtest|gmock|thrust|cub_host|nvtx3|benchmark|Eigen)/"
    r"|(?:cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvToolsExt|cuda_profiler_api|helper_)"
    r"[\w/]*\.h|Python\.h"
)


def is_for_host(name: str) -> bool:
    """Whether only host code uses what this header declares."""
    return name in _HOST_STANDARD or _HOST_LIBRARY.match(name) is not None


def is_known(name: str) -> bool:
    """Whether this module knows what to put in a header's place."""
    return name in FOR_DEVICE or is_for_host(name)


def stand_ins(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(name, text) of what NVRTC is given in place of these headers and what they lead to."""
    wanted = {name for name in names if is_known(name) or name == _DRIVER}
    if not wanted:
        return ()
    texts = {name: "" if is_for_host(name) else f'#include "{_NAME}"\n' for name in wanted}
    if _DRIVER in wanted:
        texts[_DRIVER] = _text("driver.h")
    return ((_NAME, _text("standard.h")), *sorted(texts.items()))


@functools.cache
def _text(file: str) -> str:
    return (_FOLDER / file).read_text(encoding="utf-8")
