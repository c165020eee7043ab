"""What a trainer asks of readers: the threads that the dataset was told, and samples read as the model knows them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.train import given_data

GENERATOR = Path(__file__).parents[2] / "examples" / "criteo_generator.py"
INPUTS = [("dense_input", 13), *(f"C{n}" for n in range(1, 27)), "label"]


def piped(files: Path, threads: int | None = None, kind: str = "QueueDataset") -> sf.QueueDataset:
    made = sf.DatasetFactory().create_dataset(kind)
    made.set_use_var(INPUTS)
    made.set_pipe_command(f"head -200 | {sys.executable} {GENERATOR}")
    made.set_batch_size(50)
    made.set_filelist(sf.list_files(files))
    if threads is not None:
        made.set_thread(threads)
    return made


def small() -> sf.CTRDNN:
    torch.manual_seed(0)
    return sf.CTRDNN(config=sf.CTRDNNConfig(embedding_size=4, hidden=(8,)))


def test_set_thread_sets_the_threads(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    dataset = piped(clicks / "train", threads=2)
    started = type(dataset).epoch
    monkeypatch.setattr(
        type(dataset), "epoch", lambda self, threads=None: (asked.append(threads), started(self, threads))[1]
    )
    trainer = sf.Trainer(sf.optim.Adam(1e-3))
    model = small()
    trainer.fit(model, dataset)
    assert asked == [2]
    assert trainer.config.threads == 2
    trainer.evaluate(model, piped(clicks / "test"))  # not told: as the training
    trainer.evaluate(model, piped(clicks / "test", threads=1))
    assert asked == [2, 2, 1]


def test_a_trainer_that_contradicts_it(clicks: Path) -> None:
    said = r"Trainer\(threads=3\), but the dataset says set_thread\(2\)"
    with pytest.raises(ConfigError, match=said):
        sf.Trainer(sf.optim.Adam(1e-3), threads=3).fit(small(), piped(clicks / "train", threads=2))
    with pytest.raises(ConfigError, match=said):
        sf.Trainer(sf.optim.Adam(1e-3), threads=3).evaluate(small(), piped(clicks / "test", threads=2))
    assert given_data.threads_for(piped(clicks / "test", threads=2), 2) == 2
    assert given_data.threads_for(piped(clicks / "test"), None) == 1
    assert given_data.threads_for(piped(clicks / "test"), 3) == 3


def test_samples_that_are_read_otherwise_are_refused(clicks: Path, tmp_path: Path) -> None:
    model, trainer = small(), sf.Trainer(sf.optim.Adam(1e-3))
    raw = sf.open_reader(clicks / "test", sf.CRITEO.folded(0))
    said = (
        r"was trained on what the pipe command 'head -200 .*; these samples would be read otherwise "
        r"\(slot C1, C2, C3 and 23 more: ready-made keys in training, values to hash here"
    )
    with pytest.raises(ConfigError, match="the model " + said):
        trainer.fit(model, piped(clicks / "train"), test=raw)  # before it trains
    trainer = sf.Trainer(sf.optim.Adam(1e-3))
    trainer.fit(model, piped(clicks / "train"), save=sf.SavePolicy(str(tmp_path / "run")))
    for use in (trainer.evaluate, trainer.fit, lambda *given: next(trainer.predict(*given))):
        with pytest.raises(ConfigError, match="the model " + said):
            use(model, raw)
    later = sf.Trainer()
    again, schema = sf.saved_model(tmp_path / "run")
    later.load(again, str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"run/step-\d+ " + said):
        later.evaluate(again, sf.open_reader(clicks / "test", schema))
    with pytest.raises(ConfigError, match=r"open_reader\(…, same_inputs=True\)"):
        later.evaluate(again, sf.open_reader(clicks / "test", schema))
    assert later.evaluate(again, piped(clicks / "test")) == trainer.evaluate(model, piped(clicks / "test"))
    # The example generator hashes as Criteo's schema does: whoever knows that may say so.
    vouched = sf.open_reader(clicks / "test", sf.CRITEO, same_inputs=True)
    piped_auc = trainer.evaluate(model, _all_of(clicks / "test"))["auc"]
    assert later.evaluate(again, vouched)["auc"] == pytest.approx(piped_auc, abs=1e-6)


def _all_of(files: Path) -> sf.QueueDataset:
    made = piped(files)
    made.set_pipe_command(f"{sys.executable} {GENERATOR}")
    return made


def test_what_readers_say_of_their_samples(clicks: Path) -> None:
    raw = sf.open_reader(clicks / "test", sf.CRITEO).inputs()
    assert (raw.format, set(raw.slots.values()), set(raw.dense.values())) == ("criteo", {"raw"}, {"raw"})
    ready = piped(clicks / "test").inputs()
    assert (ready.format, set(ready.slots.values()), set(ready.dense.values())) == ("pipe", {"ready"}, {"ready"})
    assert ready.layout[0] == ("dense_input", "dense")
    assert ready.pipe_command.startswith("head -200")
    assert Inputs.from_dict(ready.to_dict(), "here") == ready
    through = sf.open_reader(clicks / "test", sf.CRITEO, kind="pyreader").inputs()
    assert through == raw
    schema = sf.Schema((sf.DenseFeature("age"),), (sf.Slot("user"), sf.Slot("ad", keys=True), sf.Slot("tags")))
    mixed = sf.Feeder(schema, [{"label": 1, "age": 3, "user": "ann", "ad": [7]}])
    assert set(mixed.inputs().slots.values()) == {"either"}
    with mixed.epoch() as epoch:
        next(epoch.streams[0])
    assert mixed.inputs().slots == {"user": "raw", "ad": "ready", "tags": "either"}
    assert mixed.inputs().dense == {"age": "raw"}


def test_documents_of_inputs_that_make_no_sense() -> None:
    good = Inputs("pipe", {"C1": "ready"}, {}, "cat", "0", (("C1", "sparse"),)).to_dict()
    for change, said in (
        ({"slots": {"C1": "boiled"}}, "field 'slots' says 'boiled' of 'C1'; allowed are raw, ready, either"),
        ({"pipe_command": 3}, "field 'pipe_command' must be null or text"),
        ({"layout": ["C1"]}, "field 'layout' must be null or a list"),
        ({"more": 1}, "unknown fields 'more'"),
    ):
        with pytest.raises(ConfigError, match=said):
            Inputs.from_dict({**good, **change}, "here")
