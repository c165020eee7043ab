"""A call of `fit` that fails before its first step teaches the trainer, and later checkpoints, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError, DataError, SparseFleetError

SLOTS = ("C1", "C2", "C3")
CONFIG = sf.CTRDNNConfig(embedding_size=4, hidden=(8,))


def lines(folder: Path, slots: Sequence[str], file: str = "part-0") -> sf.QueueDataset:
    """Lines of keys for C1, C2 and C3, read as slots of these names."""
    (folder / "part-0").write_text("".join(f"1 {n} 1 {n + 1} 1 {n + 2} 1 {n % 2}\n" for n in range(40)))
    made = sf.DatasetFactory().create_dataset("QueueDataset")
    made.set_use_var([*slots, "label"])
    made.set_pipe_command("cat")
    made.set_batch_size(10)
    made.set_filelist([str(folder / file)])
    return made


def network(data: sf.QueueDataset) -> sf.CTRDNN:
    torch.manual_seed(0)
    return sf.CTRDNN(data.schema.slot_names, 0, CONFIG)


@pytest.mark.parametrize(
    ("slots", "file"),
    [(("S1", "S2", "S3"), "part-0"), (("S3", "S2", "C1"), "part-0"), (("C1", "C2", "C3", "C4"), "nosuch")],
    ids=["other slots", "some slots", "no file"],
)
def test_a_call_without_a_step_leaves_the_trainer_as_it_was(tmp_path: Path, slots: Sequence[str], file: str) -> None:
    data = lines(tmp_path, SLOTS)
    model, trainer = network(data), sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    trainer.fit(model, data)
    trainer.save(str(tmp_path / "before"))
    with pytest.raises(SparseFleetError):
        trainer.fit(model, lines(tmp_path, slots, file))
    trainer.save(str(tmp_path / "after"))

    with pytest.raises(ConfigError, match=r"a line is \(C1, C2, C3, label\) in training"):
        trainer.evaluate(model, lines(tmp_path, SLOTS[::-1]))
    before, after = (sf.Checkpoint.open(tmp_path / name).manifest for name in ("before", "after"))
    assert (after.schema, after.inputs, after.step) == (before.schema, before.inputs, before.step)
    assert after.inputs["layout"][0] == ["C1", "sparse"]
    assert trainer.fit(model, data).steps == 8


def test_a_first_call_that_fails_leaves_nothing_to_save(tmp_path: Path) -> None:
    data = lines(tmp_path, SLOTS)
    model, trainer = network(data), sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    with pytest.raises(DataError):
        trainer.fit(model, lines(tmp_path, SLOTS[::-1], "nosuch"))
    with pytest.raises(ConfigError, match="there is nothing to save yet: call fit first"):
        trainer.save(str(tmp_path / "none"))
    assert trainer.fit(model, data).steps == 4, "in an order of its own"


def test_one_that_has_made_a_step_has_taught_it(tmp_path: Path) -> None:
    class Ends(sf.fluid.executor.FetchHandler):
        def handler(self, fetched: list[object]) -> None:
            raise ValueError("enough")

    data = lines(tmp_path, SLOTS)
    model, trainer = network(data), sf.Trainer(sf.optim.Adam(1e-2), quiet=True)
    with pytest.raises(ValueError, match="enough"):
        trainer.fit(model, data, fetch=[Ends(["step"], period_batches=1)])
    with pytest.raises(ConfigError, match=r"a line is \(C1, C2, C3, label\) in training"):
        trainer.evaluate(model, lines(tmp_path, SLOTS[::-1]))
    trainer.save(str(tmp_path / "some"))
    assert sf.Checkpoint.open(tmp_path / "some").manifest.step == 1
