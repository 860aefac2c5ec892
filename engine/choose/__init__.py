"""What to take: the kernel (`auto`), the batch size (`batch`), what to try next (`advice`).

All of them rank by the times that `History` gives.
"""
