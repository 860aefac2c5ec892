"""Run a sweep's evaluations on the workers of a Dask cluster."""
