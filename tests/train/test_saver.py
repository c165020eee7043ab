"""Saves while training goes on: from handlers, in the background, and where they fail."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from fit_jobs import every, network, rows_of, trainer

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import CheckpointError
from sparsefleet.store import LocalStore
from sparsefleet.train import FetchHandler

LIMIT = 30.0


class SaveEachTime(FetchHandler):
    """The documented way to save by hand."""

    def __init__(self, job, folder: Path, period_batches: int) -> None:
        super().__init__(["step"], period_batches=period_batches)
        self.job, self.folder, self.saved = job, folder, 0

    def handler(self, fetched):
        self.saved += 1
        self.job.save(str(self.folder / str(self.saved)))


def test_a_handler_that_saves_after_each_batch_does_not_hang_two_threads(clicks, tmp_path):
    job = trainer(threads=2)
    handler = SaveEachTime(job, tmp_path, period_batches=1)
    results = []
    run = threading.Thread(
        target=lambda: results.append(job.fit(network(), rows_of(clicks), fetch=[handler])), daemon=True
    )
    run.start()
    run.join(2 * LIMIT)
    assert not run.is_alive(), "two threads wait for each other"
    assert handler.saved == results[0].steps
    assert Checkpoint.open(str(tmp_path / str(handler.saved))).manifest.step > 0


class HeldStore(LocalStore):
    """A store whose checkpoints are not written before `go`; notes how far training has come meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.writing = threading.Event(), threading.Event()

    def cut(self):
        cut, write = super().cut(), None
        write = cut.write

        def held(path, facts, *, drop_state=False):
            self.writing.set()
            assert self.go.wait(LIMIT)
            write(path, facts, drop_state=drop_state)

        cut.write = held
        return cut


@pytest.mark.parametrize("threads", [1, 2])
def test_training_goes_on_while_a_checkpoint_is_written(clicks, tmp_path, threads):
    store = HeldStore()
    job = trainer(threads=threads, store=store)

    class Watch(FetchHandler):
        after = 0

        def handler(self, fetched):
            if store.writing.is_set():
                self.after += 1
            if self.after == 5:
                store.go.set()

    watch = Watch(["step"], period_batches=1)
    job.fit(network(), rows_of(clicks), save=every(tmp_path, 20), fetch=[watch])
    assert watch.after > 5, "steps were made between the naming of the cut and its writing"
    first = min(tmp_path.glob("step-*"))
    assert first.name == f"step-{Checkpoint.open(str(first)).manifest.step:08d}"
    # Another thread goes on until the one that saves has closed the gate, which may have to wait for a processor.
    assert 20 <= Checkpoint.open(str(first)).manifest.step < (21 if threads == 1 else 40)


class FullDisk(LocalStore):
    """Saves whose numbers are in `fails` end as on a full disk."""

    def __init__(self, fails) -> None:
        super().__init__()
        self.saves, self.fails = 0, fails

    def cut(self):
        cut, self.saves = super().cut(), self.saves + 1
        if self.saves in self.fails:

            def full(path, facts, *, drop_state=False):
                raise OSError(28, "No space left on device")

            cut.write = full
        return cut


def test_a_save_that_fails_is_nobodys_death(clicks, tmp_path, caplog):
    job = trainer(store=FullDisk(fails={1, 3}))
    with caplog.at_level(logging.WARNING, "sparsefleet.train"):
        result = job.fit(network(), rows_of(clicks), save=every(tmp_path, 5))
    said = [record.message for record in caplog.records if "was not written" in record.message]
    assert len(said) == 2
    assert "training goes on (there is none yet): [Errno 28] No space left on device" in said[0]
    assert "step-00000010 stands" in said[1]
    assert not (tmp_path / "step-00000005").exists()
    assert result.checkpoint == str(latest(str(tmp_path)))
    assert Checkpoint.open(result.checkpoint).manifest.step == result.steps


def test_so_many_in_a_row_end_the_run(clicks, tmp_path):
    job = trainer(store=FullDisk(fails=range(2, 100)))
    with pytest.raises(
        CheckpointError, match=r"[23] saves failed one after the other: .*No space left.*step-00000003"
    ) as e:
        job.fit(network(), rows_of(clicks), epochs=50, save=every(tmp_path, 3, failures=2))
    assert isinstance(e.value.__cause__, OSError)


def test_a_run_whose_last_save_fails_does_not_end_well(clicks, tmp_path):
    job = trainer(store=FullDisk(fails={1}))
    with pytest.raises(CheckpointError, match=r"came to its end, but its last save failed.*no checkpoint was saved"):
        job.fit(network(), rows_of(clicks), save=every(tmp_path))


def test_without_a_thread_to_write_in_a_save_is_written_where_it_was_named(clicks, tmp_path, monkeypatch):
    """Else the cut would stay open, and whoever saves next would wait for it for ever."""
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "sparsefleet-save":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    results = []
    run = threading.Thread(
        target=lambda: results.append(trainer().fit(network(), rows_of(clicks), save=every(tmp_path, 20))),
        daemon=True,
    )
    run.start()
    run.join(LIMIT)
    assert results, "the run did not come to its end"
    assert len(list(tmp_path.iterdir())) >= 2
