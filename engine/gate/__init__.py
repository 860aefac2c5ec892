"""The gate: what a change of kernels does to them, judged without a GPU.

`trees` are the two states that are compared and the kernels in them, `figures` what the engine
says of one kernel (the only module here that calls it), `verdicts` the rules, `judge` a whole run.
"""
