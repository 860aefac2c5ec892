"""Measuring one kernel again and again: the job, its samples on disk, what they say so far."""
