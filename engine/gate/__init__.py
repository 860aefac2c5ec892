"""The gate: judge changes of kernels without a GPU.

`trees` holds the two states that are compared and their kernels, `running` executes a kernel,
`judge` is a whole run; figures and the rules for verdicts are those of `engine.versions`.
"""
