"""A fourth set of bugs, of all rungs and kinds, as they occur when kernels are written.

Written before any of it was run; the same rules hold.
"""

from planted_bugs.fresh.order import ORDER
from planted_bugs.fresh.places import PLACES
from planted_bugs.fresh.values import VALUES
from planted_bugs.unseen import Unseen

FRESH: tuple[Unseen, ...] = (*VALUES, *PLACES, *ORDER)

__all__ = ["FRESH"]
