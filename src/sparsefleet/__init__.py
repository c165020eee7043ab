"""SparseFleet: train models with huge sparse embedding tables on CPU machines, from PyTorch.

Nothing heavy is imported here: `sparsefleet.data.generator` must load in a few milliseconds.
"""

__version__ = "0.1.0"
