"""Kernels that search rows files of bundles. Twins stand under `reference/`: see `sparsefleet.kernels`."""
