"""One module per rung of the ladder, each with one `VARIANT`; `kernels.ladder` lists them."""
