"""Tables: `SparseTable` (rows by key), `DenseTable` (a flat block), `WorkingCopy` (a trainer's own rows);
`TableSpec`, what processes agree on; `TableCut` and `DenseCut`, tables at one moment.
"""

from sparsefleet.core.table_rows import TableRows
from sparsefleet.table.dense import DenseCut, DenseTable
from sparsefleet.table.sparse import SparseTable, TableCut
from sparsefleet.table.spec import TableSpec
from sparsefleet.table.working_copy import WorkingCopy

__all__ = ["DenseCut", "DenseTable", "SparseTable", "TableCut", "TableRows", "TableSpec", "WorkingCopy"]
