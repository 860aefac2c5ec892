"""Figures of two versions of a kernel, and rules for a verdict.

Used by the gate for files of two commits, and by comparisons of sessions for evaluations.
"""
