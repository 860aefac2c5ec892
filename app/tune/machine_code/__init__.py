"""The tab "Machine code" of the Tune page."""

from app.tune.machine_code.tab import draw

__all__ = ["draw"]
