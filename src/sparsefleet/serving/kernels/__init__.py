"""Kernels of serving: requests, rows in Redis. Twins stand under `reference/`: see `sparsefleet.kernels`."""
