"""Schemas: what samples mean. Features, the dialect of CSV files, the whole, its document and its text: a file each."""

from sparsefleet.core.schema.criteo import CRITEO, criteo_schema
from sparsefleet.core.schema.csv_dialect import CsvDialect
from sparsefleet.core.schema.features import DenseFeature, Label, Slot
from sparsefleet.core.schema.schema import Schema
from sparsefleet.core.schema.text import FILE_NAME, TOML_NAME

__all__ = [
    "CRITEO",
    "FILE_NAME",
    "TOML_NAME",
    "CsvDialect",
    "DenseFeature",
    "Label",
    "Schema",
    "Slot",
    "criteo_schema",
]
