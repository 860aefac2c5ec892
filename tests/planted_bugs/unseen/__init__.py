"""Bugs that the checker was not tuned on, and changes that are not bugs.

`values`, `places` and `order` are the first set. `planted_bugs.held_out`, `planted_bugs.thin`
and `planted_bugs.fresh` are later ones.
"""

from planted_bugs.unseen.bug import Unseen, rows
from planted_bugs.unseen.legal import LEGAL
from planted_bugs.unseen.order import ORDER
from planted_bugs.unseen.places import PLACES
from planted_bugs.unseen.values import VALUES

UNSEEN: tuple[Unseen, ...] = (*VALUES, *PLACES, *ORDER)

__all__ = ["LEGAL", "UNSEEN", "Unseen", "rows"]
