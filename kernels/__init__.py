"""Kernel variants: one `.cu` file each, with a description block, and the parser of that block."""
