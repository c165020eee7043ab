"""NumPy twins of the kernels beside this folder."""
