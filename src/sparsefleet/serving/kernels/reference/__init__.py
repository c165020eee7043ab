"""Twins, in NumPy or plain Python, of the kernels beside this folder."""
