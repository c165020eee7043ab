"""Tables: `SparseTable` (rows by key), `DenseTable` (a flat block), `WorkingCopy` (a trainer's own rows);
`TableSpec`, what processes agree on.
"""

from sparsefleet.core.table_rows import TableRows
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.sparse import SparseTable
from sparsefleet.table.spec import TableSpec
from sparsefleet.table.working_copy import WorkingCopy

__all__ = ["DenseTable", "SparseTable", "TableRows", "TableSpec", "WorkingCopy"]
