"""Bugs to plant in the kernels of the ladder, and the words that the check must report for each.

`algorithm`, `memory`, `execution`, `instructions` and `hopper` are tables, which
`tests/bench/bench_mutations.py` runs and `tests/kernels/test_mutations.py` takes a sample of. A
mutation that is meant for several variants counts once for each. `compiler` is of those that the
machine code alone shows: `tests/machine_code/test_hazards.py`.
"""

from planted_bugs.mutation import Mutation
from planted_bugs.planting import Mode, Outcome, cases, look, plant

__all__ = ["Mode", "Mutation", "Outcome", "cases", "look", "plant"]
