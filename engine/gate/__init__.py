"""The gate: judge changes of kernels without a GPU.

`trees` holds the two states that are compared and their kernels, `figures` the engine's figures of
one kernel (the only module here that calls the engine), `verdicts` the rules, `judge` a whole run.
"""
