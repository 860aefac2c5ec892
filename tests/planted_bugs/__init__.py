"""Bugs to plant in the kernels of the ladder, and what the check must say of each.

`algorithm`, `memory`, `execution` and `hopper` are tables; `tests/bench/bench_mutations.py` runs
them and `tests/kernels/test_mutations.py` takes a sample. A mutation that is meant for several
variants counts once for each.
"""

from planted_bugs.mutation import Mutation
from planted_bugs.planting import Mode, Seen, cases, look, plant

__all__ = ["Mode", "Mutation", "Seen", "cases", "look", "plant"]
