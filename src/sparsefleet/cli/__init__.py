"""The command line: `sparsefleet data|train|infer|status|checkpoint`. Messages go to stderr, results to stdout."""

from __future__ import annotations


def main() -> None:
    from sparsefleet.cli.app import app  # late: `import sparsefleet.cli` alone stays cheap

    app()
