"""Recommend a kernel (`auto`), a batch size (`batch`), and what to try next (`advice`).

All rank by the times of `History`.
"""
