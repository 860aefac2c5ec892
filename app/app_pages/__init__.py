"""One short script per page: which parts it shows, in which order. The parts are in the page's
folder."""
