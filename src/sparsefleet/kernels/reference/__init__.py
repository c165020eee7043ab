"""What the native kernels do, in plain NumPy: slow, readable, and what the tests compare against."""
