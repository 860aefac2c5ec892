"""One thin script per page: which parts, in which order. The parts are in the page's folder."""
