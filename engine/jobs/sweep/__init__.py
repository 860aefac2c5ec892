"""A sweep as a job: the run in the worker, compiles ahead, sweeps of the command line."""
