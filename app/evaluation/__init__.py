"""One evaluation on the screen: figures, tabs and charts, on Tune and on Sessions alike."""
