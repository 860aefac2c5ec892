"""CUDA C++ executed on the CPU: translated, built by the C++ compiler, run in a child process.

`build` makes a library of a source, `Client` runs jobs on it. Nothing is imported here: the child
process imports this package and waits for nothing that it does not need.
"""
