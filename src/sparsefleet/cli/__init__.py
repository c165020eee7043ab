"""The command line: `sparsefleet data | train | infer | checkpoint | export | serve`.

Messages go to stderr, results to stdout.
"""

from __future__ import annotations

import sys


def main() -> None:
    # Late imports: `import sparsefleet.cli` alone stays cheap, and a machine that serves needs no torch.
    if sys.argv[1:2] == ["serve"]:
        from sparsefleet.cli.serve import only_serve

        only_serve()()
    else:
        from sparsefleet.cli.app import app

        app()
