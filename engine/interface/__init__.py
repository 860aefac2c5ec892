"""The Python interface behind `import engine as attune`: kernels, sweeps, batches, comparisons.

It calls what the command line calls, and answers with the same nouns. The public names stand in
`engine`, which imports each module here when it is first used.
"""
