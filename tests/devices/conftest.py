"""The stand-in for CuPy lies with the tests of the CUDA backend."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "backends" / "cuda"))
