"""The Python interface behind `import engine as attune`: kernels, sweeps, batches, comparisons.

The functions call the same code as the command line and return the same objects. The public names
are in `engine`, which imports each module here at first use.
"""
