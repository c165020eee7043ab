"""A bundle from a running job, by way of a checkpoint without optimizer state that lives while it is exported."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import ConfigError
from sparsefleet.train import Trainer


def save_bundle(trainer: Trainer, path: str, *, rows: str, min_seen: int, name: str | None) -> None:
    """Cut all servers at one moment, export that cut, and remove it.

    The cut lies beside the bundle: servers write their rows to it themselves, so it must be where they can write.
    """
    try:
        from sparsefleet.export.exporting import check_export, export_checkpoint
    except ImportError as error:
        raise ConfigError(
            f"a bundle needs more packages ({error}): pip install 'sparsefleet[serve]'; format='checkpoint' needs none"
        ) from error
    target = check_export(path, rows=rows, min_seen=min_seen, name=name)  # before the servers are asked for gigabytes
    model = trainer.trained_model()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.cut-", dir=target.parent) as folder:
        trainer.save(f"{folder}/cut", drop_state=True)
        # Under the name that a run would have given it: the bundle's manifest tells it.
        cut = Path(folder) / f"step-{Checkpoint.open(f'{folder}/cut').manifest.step:08d}"
        Path(f"{folder}/cut").rename(cut)
        export_checkpoint(cut, target, rows=rows, min_seen=min_seen, name=name, model=model)
