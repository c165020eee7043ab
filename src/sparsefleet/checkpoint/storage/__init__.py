"""Where checkpoints lie: one small face (`base`) over local paths (`local`) and pyarrow's (`arrow`)."""

from sparsefleet.checkpoint.storage.base import Entry, Output, Storage
from sparsefleet.checkpoint.storage.location import AnyPath, Location, locate

__all__ = ["AnyPath", "Entry", "Location", "Output", "Storage", "locate"]
