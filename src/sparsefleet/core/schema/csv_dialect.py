"""How the lines of CSV files are to be taken apart: a part of a schema."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema.checks import require_different, require_text

DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar", " ": "space"}


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How the lines of CSV files are to be taken apart."""

    delimiter: str = ","
    header: bool = True
    """The first line of each file names the columns."""
    columns: tuple[str, ...] | None = None
    """Their names, in order, where there is no header."""
    quote: str = '"'
    """Fields may stand between two of these, and hold delimiters; twice within, it stands for itself. "": none."""
    multiline: bool = False
    """Quoted fields may hold line ends. Such files cannot be cut: give at least as many files as processes."""

    def __post_init__(self) -> None:
        if self.delimiter not in DELIMITERS:
            known = ", ".join(f"{mark!r} ({name})" for mark, name in DELIMITERS.items())
            raise ConfigError(f"csv: delimiter={self.delimiter!r} is not one of {known}")
        for flag in ("header", "multiline"):
            if not isinstance(getattr(self, flag), bool):
                raise ConfigError(f"csv: {flag}={getattr(self, flag)!r} is mistyped: it must be true or false")
        if self.quote not in ('"', "'", ""):
            raise ConfigError(f"csv: quote={self.quote!r} must be '\"', \"'\" or empty")
        if self.columns is not None:
            if not isinstance(self.columns, tuple):
                raise ConfigError(f"csv: columns={self.columns!r} is mistyped: it must be a list of names")
            for name in self.columns:
                require_text("csv: columns", name)
            require_different("csv: columns", list(self.columns))
        if self.header == (self.columns is not None):
            raise ConfigError(
                "csv: give `columns`, the names in order, where there is no header, and only there "
                f"(header={str(self.header).lower()})"
            )
        if self.multiline and not self.quote:
            raise ConfigError("csv: multiline needs a quote: only quoted fields can hold line ends")
