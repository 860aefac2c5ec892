"""Two versions of one kernel: the figures of each, and the rules for a verdict on them.

The gate compares files of two commits, and a comparison of sessions their evaluations.
"""
