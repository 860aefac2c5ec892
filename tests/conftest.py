"""Settings that must stand before anything imports NumPy, and those of Hypothesis."""

from __future__ import annotations

import os

from hypothesis import settings

# The xdist workers fill the cores already. BLAS threads on top of them wait for each other by
# spinning, which has made a test of 0.2 s take 14 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# An example's time says more about the other processes of the machine than about the code.
settings.register_profile("attune", deadline=None)
settings.load_profile("attune")
