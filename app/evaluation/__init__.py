"""Figures, tabs and charts of one evaluation, for the Tune and Sessions pages."""
