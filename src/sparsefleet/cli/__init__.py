"""The command line: `sparsefleet COMMAND`; `cli/app.py` has the list of commands.

Messages go to stderr, results to stdout.
"""

from __future__ import annotations

from sparsefleet.core.errors import SparseFleetError

INTERRUPTED = 130
"""Exit status after Ctrl-C and SIGTERM, as shells have it."""
TRAINING_ONLY = ("torch", "safetensors", "onnx", "onnxscript")
"""What the small distribution, sparsefleet-serve, does without."""
COMPLETION = "_SPARSEFLEET_COMPLETE"
"""Set by a shell that asks for words to complete with: what is typed then stands in no argument."""


def main() -> None:
    import os
    import sys

    try:
        # Late imports: `import sparsefleet.cli` alone stays cheap, and a machine that serves needs no torch.
        from sparsefleet.cli import app

        (app.app if COMPLETION in os.environ else app.application(sys.argv[1:]))()
    except KeyboardInterrupt:  # while torch was being imported, which takes seconds
        os._exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_ONLY:
            raise
        from sparsefleet.cli.console import tell_error

        tell_error(
            SparseFleetError(
                f"this command needs {error.name}, which is not installed: pip install sparsefleet (sparsefleet-serve "
                "is for serve, publish and replay)"
            )
        )
        sys.exit(1)
    except SparseFleetError as error:  # while a command was being imported: kernels that this machine does not run
        from sparsefleet.cli.console import tell_error

        tell_error(error)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # All is saved and closed. Taking the interpreter and torch down in good order can take longer than
            # someone who pressed Ctrl-C should wait.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
