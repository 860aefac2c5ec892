"""A fifth set of bugs: in the code of a problem's features, in own kernels, and with requested
problems that are too small to show them.

Written before any of it was run; the same rules hold.
"""

from planted_bugs.fifth.elsewhere import ELSEWHERE
from planted_bugs.fifth.features import FEATURES
from planted_bugs.fifth.own import OWN
from planted_bugs.fifth.own_more import OWN_MORE
from planted_bugs.unseen import Unseen

FIFTH: tuple[Unseen, ...] = (*FEATURES, *OWN, *OWN_MORE, *ELSEWHERE)

__all__ = ["FIFTH"]
