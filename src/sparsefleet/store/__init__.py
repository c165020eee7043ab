"""Where parameters live: `ParameterStore` is the contract, `LocalStore` keeps them in this process."""

from sparsefleet.store.base import Done, ParameterStore, Pending
from sparsefleet.store.local import LocalStore

__all__ = ["Done", "LocalStore", "ParameterStore", "Pending"]
