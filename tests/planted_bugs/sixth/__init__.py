"""A sixth set of bugs of all kinds: in all rungs, also backward, and in three own kernels.

Written before any of it was run; the same rules hold.
"""

from planted_bugs.sixth.hopper import HOPPER
from planted_bugs.sixth.own import OWN
from planted_bugs.sixth.scalar import SCALAR
from planted_bugs.sixth.tensor import TENSOR
from planted_bugs.sixth.two_ways import TWO_WAYS
from planted_bugs.unseen import Unseen

SIXTH: tuple[Unseen, ...] = (*SCALAR, *TENSOR, *HOPPER, *TWO_WAYS, *OWN)

__all__ = ["SIXTH"]
