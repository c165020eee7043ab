"""Every error SparseFleet raises on purpose.

A message says what came, what is allowed, where, and what to do. Catch `SparseFleetError` for all of them.
"""

from __future__ import annotations

import sys
from types import TracebackType

SKIP = "on_bad_row='skip', or --on-bad-row skip,"
"""How to pass over bad rows: from Python, and at the command line."""


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
        super().__init__(f"{where}: {reason}{shown} ({SKIP} counts and skips such rows)")


class CheckpointError(SparseFleetError):
    """A checkpoint that is missing, damaged, of another version, or of another shape than the model."""


class StoreError(SparseFleetError):
    """A parameter store that refused or failed a call."""


class Disagreement(StoreError):
    """A call that contradicts what other trainers of the job have asked for: another model, say."""


class Rejoin(StoreError):
    """This attempt of the job is over, because a process of it was lost: go back to the cut that the next one begins
    from, and on from there."""


class BundleError(SparseFleetError):
    """A bundle that is missing, damaged, of another version or does not fit together; a model that cannot be one."""


def plain_errors() -> None:
    """For scripts: an error of ours that ends the program prints one line, `error: …`, in place of a traceback.

    The exit status stays 1. Other errors are bugs and keep their traceback.
    """
    usual = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, SparseFleetError):
            print(f"error: {error}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        else:
            usual(kind, error, trace)

    # The hook, not a context manager: whoever looks for the error when the process ends (`sys.last_value`) finds it.
    sys.excepthook = tell
