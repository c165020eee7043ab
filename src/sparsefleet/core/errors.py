"""Every error SparseFleet raises on purpose.

A message says what came, what is allowed, where, and what to do. Catch `SparseFleetError` for all of them.
"""

from __future__ import annotations


class SparseFleetError(Exception):
    """Base of all errors raised for callers; anything else that escapes is a bug of ours."""


class ConfigError(SparseFleetError, ValueError):
    """A setting, argument or schema that makes no sense."""


class DataError(SparseFleetError):
    """Input data that cannot be read: a bad row, a damaged file, a failed pipe command."""


class BadRowError(DataError):
    """One row that does not parse: where it stands, which column, and why."""

    def __init__(self, file: str, line: int, column: int | None, reason: str, text: str = "") -> None:
        self.file, self.line, self.column, self.reason, self.text = file, line, column, reason, text
        where = f"{file}, line {line}" + (f", column {column}" if column is not None else "")
        shown = f": {text!r}" if text else ""
        super().__init__(f"{where}: {reason}{shown} (on_bad_row='skip' counts and skips such rows)")


class CheckpointError(SparseFleetError):
    """A checkpoint that is missing, damaged, of another version, or of another shape than the model."""


class StoreError(SparseFleetError):
    """A parameter store that refused or failed a call."""


class BundleError(SparseFleetError):
    """A bundle that is missing, damaged, of another version or does not fit together; a model that cannot be one."""
