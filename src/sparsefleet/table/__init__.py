"""Tables: `SparseTable` (rows by key), `DenseTable` (a flat block); `TableSpec`, what processes agree on."""

from sparsefleet.core.table_rows import TableRows
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.sparse import SparseTable
from sparsefleet.table.spec import TableSpec

__all__ = ["DenseTable", "SparseTable", "TableRows", "TableSpec"]
