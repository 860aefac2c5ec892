"""How a host build is made and run where nobody says otherwise."""

from __future__ import annotations

from typing import Literal, TypeAlias

Schedule: TypeAlias = Literal["in_order", "random", "reverse"]


DEFAULT_ARCH = "sm_80"  # where nobody names a GPU
