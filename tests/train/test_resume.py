"""A resumed run with one thread ends with exactly the bits of the one that was never interrupted."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fit_jobs import (
    BATCH,
    assert_same_bits,
    assert_same_checkpoints,
    every,
    network,
    rows_of,
    state_of,
    trainer,
)
from torch import nn

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.communicator.direct import _DirectLane as DirectLane
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data import Feeder, PyReader
from sparsefleet.metrics import ClickMetrics
from sparsefleet.models import CTRDNN
from sparsefleet.optim import SGD, Adagrad, Adam
from sparsefleet.train import FetchHandler, SavePolicy, Trainer
from sparsefleet.train.threads import JOIN_SECONDS

READERS = {
    "queue": lambda clicks: rows_of(clicks),
    "memory": lambda clicks: rows_of(clicks, "memory"),
    "shuffled": lambda clicks: rows_of(clicks, "memory", shuffle_seed=11),
    "pyreader": lambda clicks: rows_of(clicks, "pyreader"),
    "feeder": lambda clicks: rows_of(clicks, "feeder"),
    "user's generator": lambda clicks: PyReader(CRITEO, lambda: user_batches(clicks), BATCH),
    "user's batches": lambda clicks: Feeder(CRITEO, lambda: user_batches(clicks)),
}


def user_batches(clicks):
    with rows_of(clicks).epoch(1) as epoch:
        yield from epoch.streams[0]


def stop_at(step):
    class Stop(FetchHandler):
        def handler(self, fetched):
            raise KeyboardInterrupt

    return Stop(["step"], period_batches=step)


def slow_after(step):
    """What a thread does after that step takes so long that it hears of another's interrupt before the data end."""

    class Slow(FetchHandler):
        def handler(self, fetched):
            if fetched[0] > step:
                time.sleep(0.1)

    return Slow(["step"], period_batches=1)


@pytest.mark.parametrize("reader", READERS)
def test_from_any_checkpoint_to_the_same_bits(clicks, tmp_path, reader):
    make = READERS[reader]
    whole = trainer()
    done = whole.fit(network(), make(clicks), epochs=2, save=every(tmp_path / "whole", 25))
    steps = sorted(int(path.name[5:]) for path in (tmp_path / "whole").glob("step-*"))
    assert steps == [25, 50, 60, 75, 100, 120]
    # In the middle of an epoch, at its end, in the second one, at the very end.
    for step in (25, 60, 75, 120) if reader in ("queue", "shuffled") else (75,):
        job = trainer()
        result = job.fit(
            network(seed=99),  # its weights come from the checkpoint
            make(clicks),
            epochs=2,
            resume=str(tmp_path / "whole" / f"step-{step:08d}"),
            save=every(tmp_path / f"from-{step}", every_epoch=True),
        )
        assert_same_bits(whole, job)
        assert result.train == done.train
        assert result.steps == 120
        assert result.rows == (120 - step) * BATCH
        if step < 120:
            assert_same_checkpoints(tmp_path / "whole" / "step-00000120", tmp_path / f"from-{step}" / "step-00000120")


@pytest.mark.parametrize("reader", READERS)
def test_a_save_at_an_epochs_last_batch_does_not_train_it_again(clicks, tmp_path, reader):
    policy = every(tmp_path, 60, every_epoch=False)
    job = trainer()
    job.fit(network(), READERS[reader](clicks), epochs=1, save=policy)
    again = trainer()
    result = again.fit(network(), READERS[reader](clicks), epochs=1, resume=str(tmp_path))
    assert result.rows == 0
    assert_same_bits(job, again)


def test_a_run_that_saves_trains_the_same_bits_as_one_that_does_not(clicks, tmp_path):
    one, other = trainer(), trainer()
    one.fit(network(), rows_of(clicks))
    other.fit(network(), rows_of(clicks), save=every(tmp_path, 7))
    assert_same_bits(one, other)


@pytest.mark.parametrize("rule", [SGD(0.05), Adagrad(0.05)], ids=lambda rule: rule.name)
def test_other_rules(clicks, tmp_path, rule):
    whole, job = trainer(rule=rule), trainer(rule=rule)
    whole.fit(network(), rows_of(clicks), save=every(tmp_path, 25))
    job.fit(network(1), rows_of(clicks), resume=str(tmp_path / "step-00000025"))
    assert_same_bits(whole, job)


def test_bf16(clicks, tmp_path):
    whole, job = trainer(precision="bf16"), trainer(precision="bf16")
    whole.fit(network(), rows_of(clicks), save=every(tmp_path, 25))
    job.fit(network(1), rows_of(clicks), resume=str(tmp_path / "step-00000025"))
    assert_same_bits(whole, job)


class Wild(nn.Module):
    """Dropout, BatchNorm, a frozen layer: whatever else a run depends on."""

    def __init__(self):
        super().__init__()
        self.inner = CTRDNN(config=network().config)
        self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.norm, self.drop = nn.BatchNorm1d(2), nn.Dropout(0.3)

    def forward(self, batch):
        return self.drop(self.norm(self.frozen(self.inner(batch))))


def test_dropout_batchnorm_and_frozen_parameters(clicks, tmp_path):
    torch.manual_seed(4)
    model = Wild()
    whole = trainer()
    frozen = model.frozen.weight.clone()
    done = whole.fit(model, rows_of(clicks), epochs=2, save=every(tmp_path, 25), test=rows_of(clicks, part="test"))
    assert torch.equal(model.frozen.weight, frozen)
    assert int(model.norm.num_batches_tracked) == 120
    torch.manual_seed(5)
    other, job = Wild(), trainer()
    path = str(tmp_path / "step-00000075")
    result = job.fit(other, rows_of(clicks), epochs=2, resume=path, test=rows_of(clicks, part="test"))
    assert_same_bits(whole, job)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert result.test == done.test
    assert result.train == done.train


@pytest.mark.parametrize(
    ("reader", "threads"), [("queue", 2), ("queue", 3), ("shuffled", 2), ("pyreader", 2), ("feeder", 2)]
)
def test_with_threads_no_row_is_lost_or_trained_twice(clicks, tmp_path, reader, threads):
    make = READERS[reader]
    trainer(threads).fit(network(), make(clicks), save=every(tmp_path, 23))
    states = {path: state_of(path) for path in tmp_path.glob("step-*")}
    within = [path for path, state in states.items() if state.step < 60]  # a save may come so late that all is done
    assert within
    for path in within:
        before = states[path]
        job = trainer(threads)
        result = job.fit(network(), make(clicks), resume=str(path))
        assert result.train["rows"] == 6000
        assert 0 < result.rows < 6000
        assert result.steps > before.step


def test_interrupted_before_its_first_step_a_resumed_run_stays_where_it_was(clicks, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(network(), rows_of(clicks), save=SavePolicy(str(tmp_path)), fetch=[stop_at(20)])
    before, again = state_of(latest(tmp_path)), rows_of(clicks)

    def interrupt(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(again, "set_epoch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(network(), again, resume=str(tmp_path), save=SavePolicy(str(tmp_path)))
    assert before.position
    assert state_of(latest(tmp_path)).position == before.position
    assert trainer().fit(network(), rows_of(clicks), resume=str(tmp_path)).train["rows"] == 6000


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reader", ["queue", "shuffled", "pyreader", "feeder"])
def test_an_interrupt_saves_where_the_run_stands(clicks, tmp_path, reader, threads):
    make = READERS[reader]
    with pytest.raises(KeyboardInterrupt):
        trainer(threads).fit(
            network(), make(clicks), 2, save=SavePolicy(str(tmp_path)), fetch=[stop_at(83), slow_after(83)]
        )
    state = state_of(latest(tmp_path))
    assert state.step == 83 if threads == 1 else 83 <= state.step < 120
    assert (state.epoch, state.finished) == (1, False)
    job = trainer(threads)
    result = job.fit(network(1), make(clicks), 2, resume=str(tmp_path))
    assert result.train["rows"] == 12000
    if threads == 1:
        assert ClickMetrics.from_dict(state.metrics).rows == state.step * BATCH
        whole = trainer()
        whole.fit(network(), make(clicks), 2)
        assert_same_bits(whole, job)


def test_an_interrupt_while_testing_saves_the_epochs_end(clicks, tmp_path):
    class Stop(Feeder):
        def consumed(self, batch):
            raise KeyboardInterrupt

    test = Stop(CRITEO, lambda: user_batches(clicks))
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(network(), rows_of(clicks), 2, test=test, save=SavePolicy(str(tmp_path), every_epoch=False))
    state = state_of(latest(tmp_path))
    assert (state.step, state.epoch, state.position) == (60, 1, {})
    whole, job = trainer(), trainer()
    whole.fit(network(), rows_of(clicks), 2)
    job.fit(network(1), rows_of(clicks), 2, resume=str(tmp_path))
    assert_same_bits(whole, job)


def test_an_interrupt_before_the_first_step(clicks, tmp_path):
    class Stop(FetchHandler):
        def tick(self, fetch):
            raise KeyboardInterrupt

    stuck = threading.Event()

    def waits():
        stuck.wait(20)
        yield from user_batches(clicks)

    try:
        with pytest.raises(KeyboardInterrupt):
            trainer().fit(
                network(), Feeder(CRITEO, waits), save=SavePolicy(str(tmp_path)), fetch=[Stop(["auc"], period_secs=1)]
            )
    finally:
        stuck.set()
    assert state_of(latest(tmp_path)).step == 0
    whole, job = trainer(), trainer()
    whole.fit(network(), rows_of(clicks, "feeder"))
    job.fit(network(1), rows_of(clicks, "feeder"), resume=str(tmp_path))
    assert_same_bits(whole, job)


def test_an_interrupt_waits_for_a_thread_that_leaves(clicks, tmp_path, monkeypatch):
    """It may have been between two steps when the gate was quiet, and leaves inside the gate."""
    between, interrupted = threading.Event(), threading.Event()

    class Stop(FetchHandler):
        def handler(self, fetched):
            between.set()
            interrupted.wait(20)
            threading.Event().wait(JOIN_SECONDS / 2)  # until it was seen that nobody is within a step

        def tick(self, fetch):
            if between.is_set():
                interrupted.set()
                raise KeyboardInterrupt

    def leave_late(lane):
        threading.Event().wait(JOIN_SECONDS + 0.5)  # as long as a server's answer takes on a busy machine

    monkeypatch.setattr(DirectLane, "leave", leave_late)
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(
            network(), rows_of(clicks), save=SavePolicy(str(tmp_path)), fetch=[Stop(["step"], period_batches=1)]
        )
    assert state_of(latest(tmp_path)).step == 1


def test_not_asked_to_save_it_does_not(clicks, tmp_path):
    policy = SavePolicy(str(tmp_path), on_interrupt=False)
    with pytest.raises(KeyboardInterrupt):
        trainer().fit(network(), rows_of(clicks), save=policy, fetch=[stop_at(30)])
    assert not list(tmp_path.iterdir())


def test_only_so_many_checkpoints_stay(clicks, tmp_path):
    trainer().fit(network(), rows_of(clicks), save=SavePolicy(str(tmp_path), every_steps=10, keep=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000050", "step-00000060"]


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(clicks, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    trainer().fit(network(), rows_of(clicks), save=every(folder, 25))
    return folder / "step-00000025"


def resume(clicks, saved, model=None, job=None, reader=None) -> None:
    (job or trainer()).fit(model or network(), reader or rows_of(clicks), resume=str(saved))


def test_another_embedding_size(clicks, saved):
    with pytest.raises(CheckpointError, match=r"\[16, 117\]; the model's has \[16, 143\]"):
        resume(clicks, saved, network(dim=5))


def test_other_widths(clicks, saved):
    with pytest.raises(CheckpointError, match=r"saved with shape \[16, 117\]; the model's has \[8, 117\]"):
        resume(clicks, saved, network(hidden=(8, 16)))
    with pytest.raises(CheckpointError, match=r"no parameter 'tower.layers.3.weight'; the model has"):
        resume(clicks, saved, network(hidden=(16, 16, 2)))


def test_another_optimizer(clicks, saved):
    with pytest.raises(CheckpointError, match="saved with optimizer adam; the model's is sgd") as caught:
        resume(clicks, saved, job=trainer(rule=SGD(0.1)))
    assert "values_only=True" in str(caught.value)


def test_values_alone_fit_any_optimizer(clicks, saved):
    job, model, other = trainer(rule=SGD(0.1)), network(1), network()
    facts = job.load(model, str(saved), values_only=True)
    assert facts.step == 25
    reference = trainer()
    reference.restore(other, str(saved))
    test = rows_of(clicks, part="test")
    assert job.evaluate(model, test) == reference.evaluate(other, test)


def test_another_schema(clicks, saved):
    from sparsefleet.data.open import open_reader

    folded = open_reader(clicks / "train", CRITEO.folded(0), batch_size=BATCH)
    with pytest.raises(CheckpointError, match="another schema: sparse_feature_dim is 1000001 there, 0 here"):
        resume(clicks, saved, reader=folded)


def test_another_reader(clicks, saved):
    with pytest.raises(ConfigError, match="position is of a reader of kind 'files', this one is of kind 'iterable'"):
        resume(clicks, saved, reader=rows_of(clicks, "feeder"))


def test_other_files(clicks, saved):
    with pytest.raises(ConfigError, match="files"):
        resume(clicks, saved, reader=rows_of(clicks, part="test"))


def test_missing(clicks, tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere"):
        resume(clicks, tmp_path / "nowhere")


def copy_of(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_another_version(clicks, saved, tmp_path):
    copy = copy_of(saved, tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["version"] = 99
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="99"):
        resume(clicks, copy)


@pytest.mark.parametrize("kind", ["parquet", "safetensors"])
def test_a_flipped_byte(clicks, saved, tmp_path, kind):
    copy = copy_of(saved, tmp_path)
    file = max(copy.rglob(f"*.{kind}"), key=lambda path: path.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"{file.name}.*damaged"):
        resume(clicks, copy)


@pytest.mark.parametrize("field", ["metrics", "random_state", "epoch"])
def test_a_damaged_record_of_the_run(clicks, saved, tmp_path, field):
    copy = copy_of(saved, tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["extra"]["training"][field] = {"metrics": {"auc": 1}, "random_state": "?!", "epoch": "x"}[field]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises((CheckpointError, ConfigError), match=r"damaged|not metrics"):
        resume(clicks, copy)


def test_a_model_of_another_kind(clicks, saved):
    class TwoTables(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()
            from sparsefleet.nn import SparseEmbedding

            self.more = SparseEmbedding("more", 2, ["C1"])

        def forward(self, batch):
            return self.inner(batch) + self.more(batch)

    with pytest.raises(CheckpointError, match=r"inner.tower|more"):
        resume(clicks, saved, TwoTables())


def test_policy_settings():
    with pytest.raises(ConfigError, match="every_steps=0"):
        SavePolicy("x", every_steps=0)
    with pytest.raises(ConfigError, match="keep=0"):
        SavePolicy("x", keep=0)


def test_a_checkpoint_holds_one_moment(clicks, tmp_path):
    """Three threads, saves all the time: rows counted, position and optimizer clocks agree in every one of them."""
    Trainer(Adam(0.01), threads=3).fit(network(), rows_of(clicks), save=every(tmp_path, 5))
    checked = 0
    for path in sorted(tmp_path.glob("step-*")):
        checkpoint = Checkpoint.open(str(path))
        manifest = checkpoint.manifest
        assert manifest.table("SparseFeatFactors").step == manifest.block("dense").step == manifest.step
        seen = np.concatenate([rows.seen for rows in checkpoint.sparse_rows("SparseFeatFactors")])
        samples, rest = divmod(int(seen.sum()), len(CRITEO.slot_names))  # a sample has one value in every slot
        assert rest == 0
        assert (manifest.step - 3) * BATCH < samples <= manifest.step * BATCH, "each thread's last batch may be smaller"
        checked += 1
    assert checked >= 10
    assert samples == 6000
