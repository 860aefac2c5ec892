"""Settings that must stand before anything imports NumPy."""

from __future__ import annotations

import os

# The xdist workers fill the cores already. BLAS threads on top of them wait for each other by
# spinning, which has made a test of 0.2 s take 14 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
