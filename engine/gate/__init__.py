"""The gate: verdicts on changed kernels without a GPU.

`trees` reads the two compared states and their kernels, `running` executes a kernel, `judge` runs
the whole comparison. Figures and rules for verdicts are those of `engine.versions`.
"""
