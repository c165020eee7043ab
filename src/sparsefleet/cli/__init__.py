"""The command line: `sparsefleet data | train | infer | checkpoint`. Messages go to stderr, results to stdout."""

from __future__ import annotations


def main() -> None:
    import sys

    try:
        from sparsefleet.cli.app import app  # late: `import sparsefleet.cli` alone stays cheap
    except KeyboardInterrupt:  # torch takes seconds to import: no traceback for who changes their mind meanwhile
        sys.exit(130)

    app()
