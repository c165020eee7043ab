"""What `Trainer.fit` promises: the same bits twice, every row once whatever the threads, going on where it stood."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from fit_jobs import TABLE, assert_same_bits, dense_values, everything, network, rows_of, table_rows, trainer

from sparsefleet.core.errors import ConfigError, DataError, StoreError
from sparsefleet.data import Feeder
from sparsefleet.optim import SGD, Adam
from sparsefleet.train import DivergedError, FetchHandler
from sparsefleet.train.reporting import Reporter


@pytest.mark.parametrize("kind", ["queue", "memory", "pyreader", "feeder"])
def test_one_thread_and_a_seed_give_the_same_bits_twice(clicks, kind):
    jobs = []
    for _ in range(2):
        jobs.append(trainer(seed=3))
        jobs[-1].fit(network(seed=3), rows_of(clicks, kind), epochs=1)
    assert_same_bits(*jobs)


def test_another_seed_gives_other_rows(clicks):
    one, other = trainer(seed=1), trainer(seed=2)
    for job in (one, other):
        job.fit(network(), rows_of(clicks))
    assert table_rows(one.store).keys() == table_rows(other.store).keys()
    assert everything(one) != everything(other)


@pytest.mark.parametrize("kind", ["queue", "memory", "pyreader", "feeder"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_train_every_row_exactly_once(clicks, kind, threads):
    reader, seen, lock = rows_of(clicks, kind), [], threading.Lock()
    consumed = reader.consumed

    def note(batch):
        with lock:
            seen.append((threading.current_thread().name, batch.dense.tobytes() + batch.keys.tobytes(), len(batch)))
        consumed(batch)

    reader.consumed = note
    job = trainer(threads)
    result = job.fit(network(), reader, epochs=2, test=rows_of(clicks, part="test"))
    assert result.rows == 12000
    assert result.train["rows"] == 12000
    assert sum(count for *_, count in seen) == 12000
    assert result.steps == len(seen) == job.store.dense_tables()["dense"].step
    assert math.isfinite(result.train["logloss"])
    assert result.test["rows"] == 1500
    assert result.test["auc"] > 0.6
    assert {name for name, *_ in seen} <= {f"train-{index}" for index in range(threads)}
    # Every row of the files, whoever read it.
    rows = sorted(row.tobytes() for batch in _batches(rows_of(clicks)) for row in batch.dense)
    trained = []
    for _, raw, count in seen:
        dense = np.frombuffer(raw[: count * 13 * 4], np.float32).reshape(count, 13)
        trained += [row.tobytes() for row in dense]
    assert sorted(trained) == sorted(rows * 2)


def _batches(reader):
    with reader.epoch(1) as epoch:
        yield from epoch.streams[0]


def test_fit_called_again_goes_on(clicks):
    at_once, twice = trainer(), trainer()
    at_once.fit(network(), rows_of(clicks), epochs=2)
    model = network()
    first = twice.fit(model, rows_of(clicks), epochs=1)
    second = twice.fit(model, rows_of(clicks), epochs=1)
    assert_same_bits(at_once, twice)
    assert (first.steps, second.steps) == (60, 120)
    assert second.rows == 6000
    assert second.train["rows"] == 6000  # metrics start anew
    assert second.train["logloss"] < first.train["logloss"]


def test_a_shuffled_dataset_goes_on_with_the_next_order(clicks):
    at_once, twice = trainer(), trainer()
    at_once.fit(network(), rows_of(clicks, "memory", shuffle_seed=5), epochs=2)
    model = network()
    for _ in range(2):
        twice.fit(model, rows_of(clicks, "memory", shuffle_seed=5), epochs=1)
    assert_same_bits(at_once, twice)


def test_a_second_model_on_the_same_store_trains_the_same_parameters(clicks):
    job, other = trainer(), trainer()
    first, second = network(), network(seed=9)
    job.fit(first, rows_of(clicks))
    job.fit(second, rows_of(clicks))  # takes over what the store holds, and sees its updates at once
    same = network()
    other.fit(same, rows_of(clicks), epochs=2)
    assert_same_bits(job, other)
    parameters = torch.cat([p.detach().reshape(-1) for p in second.parameters()])
    assert parameters.numpy().tobytes() == dense_values(job).tobytes()


def test_another_network_on_the_same_store_is_refused(clicks):
    job = trainer()
    job.fit(network(), rows_of(clicks))
    with pytest.raises(StoreError, match="dense block 'dense'"):
        job.fit(network(hidden=(8,)), rows_of(clicks))
    with pytest.raises(StoreError, match="dim is 4 there and 5 here"):
        job.fit(network(dim=5), rows_of(clicks))


def test_evaluate_changes_nothing_and_creates_no_rows(clicks):
    job, model = trainer(threads=2), network()
    job.fit(model, rows_of(clicks))
    before, rows = everything(job), job.store.stats()["tables"][TABLE]["rows"]
    test = rows_of(clicks, part="test")
    first, second = job.evaluate(model, test), job.evaluate(model, test)
    assert first == pytest.approx(second, abs=1e-12)
    assert first["rows"] == 1500  # from zero each time
    assert job.store.stats()["tables"][TABLE]["rows"] == rows
    assert everything(job) == before
    assert model.training  # as it was


def test_predictions_come_in_the_order_of_the_input(clicks):
    job, model = trainer(threads=2), network()
    job.fit(model, rows_of(clicks))
    test = rows_of(clicks, part="test")
    predicted = list(job.predict(model, test))
    labels = np.concatenate([batch.labels for batch, _ in predicted])
    wanted = [line.split("\t", 1)[0] for part in sorted((clicks / "test").iterdir()) for line in part.open()]
    assert labels.astype(int).tolist() == [int(label) for label in wanted]
    again = np.concatenate([probabilities for _, probabilities in job.predict(model, test)])
    assert np.concatenate([p for _, p in predicted]).tobytes() == again.tobytes()
    auc = job.evaluate(model, test)["auc"]
    ranked = labels[np.argsort(again, kind="stable")]
    positives = ranked.sum()
    exact = (np.flatnonzero(ranked).sum() - positives * (positives - 1) / 2) / positives / (len(ranked) - positives)
    assert auc == pytest.approx(exact, abs=2e-3)


def test_a_loss_that_is_not_a_number_ends_the_run_before_it_spoils_the_tables(clicks):
    model = network()
    job = trainer()

    def poisoned():
        for number, batch in enumerate(_batches(rows_of(clicks))):
            if number == 7:
                batch.dense[3, 2] = math.nan
            yield batch

    with pytest.raises(DivergedError, match="the loss became nan: lower the learning rate"):
        job.fit(model, Feeder(rows_of(clicks).schema, poisoned))
    assert np.isfinite(dense_values(job)).all()
    for rows in job.store.sparse_tables()[TABLE].scan():
        assert np.isfinite(rows.values).all()
        assert np.isfinite(rows.state).all()
    assert job.store.dense_tables()["dense"].step == 7


def test_a_precision_that_is_none_is_refused(clicks):
    with pytest.raises(ConfigError, match="precision='fp8' is not a precision; choose float32 or bf16"):
        trainer(precision="fp8").fit(network(), rows_of(clicks))


def test_a_row_without_a_label_is_named_as_such(clicks):
    def unlabelled():
        for batch in _batches(rows_of(clicks)):
            batch.labels[:2] = math.nan
            yield batch

    with pytest.raises(DataError, match=r"2 of the \d+ rows of a batch have no label, and training needs one for each"):
        trainer().fit(network(), Feeder(rows_of(clicks).schema, unlabelled))


def test_an_absurd_learning_rate_diverges_with_a_word(clicks):
    with pytest.raises(DivergedError, match="lower the learning rate"):
        trainer(threads=2, rule=SGD(1e6)).fit(network(), rows_of(clicks), epochs=3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"threads": 0}, "threads=0 must be 1 or above"),
        ({"precision": "fp8"}, "precision='fp8' is not a precision; choose float32 or bf16"),
        ({"num_thresholds": 0}, "num_thresholds=0"),
        ({"slide_steps": 0}, "slide_steps=0"),
    ],
)
def test_settings_that_make_no_sense(clicks, settings, said):
    with pytest.raises(ConfigError, match=said):
        trainer(**settings).fit(network(), rows_of(clicks))


def test_negative_epochs(clicks):
    with pytest.raises(ConfigError, match="epochs=-1"):
        trainer().fit(network(), rows_of(clicks), epochs=-1)


def test_bf16_learns_as_well(clicks):
    aucs = {}
    for precision in ("float32", "bf16"):
        job, model = trainer(precision=precision), network()
        aucs[precision] = job.fit(model, rows_of(clicks), 2, test=rows_of(clicks, part="test")).test["auc"]
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert aucs["bf16"] == pytest.approx(aucs["float32"], abs=0.02)


def test_torch_keeps_its_threads(clicks):
    before = torch.get_num_threads()
    trainer(threads=2).fit(network(), rows_of(clicks), test=rows_of(clicks, part="test"))
    assert torch.get_num_threads() == before


# -- looking into a run ----------------------------------------------------------------------------------------------


class Collect(FetchHandler):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.calls = []

    def handler(self, fetched):
        self.calls.append(fetched)


def test_a_handler_by_batches(clicks):
    handler = Collect(["step", "auc", "tower.layers.0.weight"], period_batches=20)
    job, model = trainer(), network()
    job.fit(model, rows_of(clicks), fetch=[handler])
    assert [int(step) for step, *_ in handler.calls] == [20, 40, 60]
    assert all(isinstance(value, np.ndarray) for call in handler.calls for value in call)
    weights = [call[2] for call in handler.calls]
    assert weights[0].shape == (16, 26 * 4 + 13)
    assert not np.array_equal(weights[0], weights[1])  # a copy, not a window into the running model
    assert weights[2].tobytes() == model.tower.layers[0].weight.detach().numpy().tobytes()


def test_a_handler_by_seconds(clicks):
    handler = Collect(["rows", "loss"], 0.001, return_np=False)
    trainer().fit(network(), rows_of(clicks), epochs=4, fetch=[handler])
    assert handler.calls
    assert all(isinstance(value, torch.Tensor) for call in handler.calls for value in call)


def test_an_unknown_name_is_refused_before_training(clicks):
    job = trainer()
    with pytest.raises(ConfigError, match=r"cannot fetch 'acu'; choose from .*auc.* a dense parameter: tower"):
        job.fit(network(), rows_of(clicks), fetch=[Collect(["acu"], period_batches=1000)])
    assert job.store.dense_tables()["dense"].step == 0
    with pytest.raises(ConfigError, match="cannot fetch 'losss'; choose from auc, logloss"):
        job.infer_from_dataset(network(), rows_of(clicks), fetch_list=["losss"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "either period_secs or period_batches"),
        ({"period_secs": 1, "period_batches": 1}, "either period_secs or period_batches"),
        ({"period_secs": 0}, "above 0"),
        ({"period_batches": -1}, "above 0"),
    ],
)
def test_a_handler_without_a_sensible_period(settings, said):
    with pytest.raises(ConfigError, match=said):
        FetchHandler(["auc"], **settings)


def test_a_handler_that_fails_ends_the_run_with_its_error(clicks):
    class Broken(FetchHandler):
        def handler(self, fetched):
            raise ZeroDivisionError("in the handler")

    for handler in (Broken(["auc"], period_batches=3), Broken(["auc"], 0.001)):
        with pytest.raises(ZeroDivisionError, match="in the handler"):
            trainer(threads=2).fit(network(), rows_of(clicks), epochs=5, fetch=[handler])


def test_train_from_dataset_prints(clicks, capsys):
    job, model = trainer(), network()
    handler = Collect(["step"], period_batches=50)
    result = job.train_from_dataset(
        model,
        rows_of(clicks),
        fetch_list=["step", "auc"],
        fetch_info=["batch", "AUC:"],
        print_period=20,
        fetch_handler=handler,
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["batch", str(step), "AUC:"] for step in (20, 40, 60)]
    assert float(lines[-1].split()[3]) == pytest.approx(result.train["auc"])
    assert len(handler.calls) == 1
    values = job.infer_from_dataset(
        model, rows_of(clicks, part="test"), fetch_list=["auc"], fetch_info=["test AUC"], print_period=6
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15 // 6 + 1
    assert lines[-1] == f"test AUC {values['auc']}"


def test_fetch_info_of_another_length(clicks):
    for call in ("train_from_dataset", "infer_from_dataset"):
        with pytest.raises(ConfigError, match="fetch_info has 1 texts for 2 names"):
            getattr(trainer(), call)(network(), rows_of(clicks), fetch_list=["auc", "rows"], fetch_info=["a"])


def test_the_window_auc_is_that_of_the_last_batches(clicks):
    whole, window = Collect(["auc", "batch_auc"], period_batches=60), Collect(["auc", "batch_auc"], period_batches=60)
    trainer(slide_steps=60).fit(network(), rows_of(clicks), fetch=[whole])
    trainer(slide_steps=10).fit(network(), rows_of(clicks), fetch=[window])
    (auc, batch_auc) = whole.calls[0]
    assert auc == batch_auc  # the window holds the whole epoch
    (auc, batch_auc) = window.calls[0]
    assert batch_auc > auc + 0.03  # it has learned meanwhile


def test_reporters_are_called_from_one_thread_and_closed_whatever_happens(clicks, tmp_path):
    calls, threads = [], set()

    class Note(Reporter):
        def __getattribute__(self, name):
            if name in ("start", "epoch_end", "evaluated", "saved", "close"):
                calls.append(name)
                threads.add(threading.current_thread())
            return super().__getattribute__(name)

    from fit_jobs import every

    job = trainer(threads=2, reporters=[Note()])
    job.fit(network(), rows_of(clicks), save=every(tmp_path, 20), test=rows_of(clicks, part="test"))
    assert threads == {threading.current_thread()}
    assert calls[0] == "start"
    assert calls[-1] == "close"
    # Steps 20, 40 and 60, and the end of the epoch where two short last batches made it a step more than 60.
    assert calls.count("saved") in (3, 4)
    calls.clear()
    with pytest.raises(DivergedError):
        trainer(rule=SGD(1e6), reporters=[Note()]).fit(network(), rows_of(clicks), epochs=3)
    assert calls[-1] == "close"


def test_the_time_left_is_reckoned_from_the_first_epoch_on(clicks):
    ends = []

    class Note(Reporter):
        def epoch_end(self, snapshot):
            ends.append((snapshot.epoch, snapshot.done_before))

    job, model = trainer(reporters=[Note()]), network()
    job.fit(model, rows_of(clicks), epochs=2)
    job.fit(model, rows_of(clicks), epochs=2)
    assert ends == [(0, 0.0), (1, 0.0), (2, 2.0), (3, 2.0)]


def test_rates_decay(clicks):
    from sparsefleet.optim.schedule import ExponentialDecay

    still, decayed = trainer(), trainer(rule=Adam(0.01, schedule=ExponentialDecay(1, 1e-9)))
    first = {}
    for job in (still, decayed):
        model = network()
        job.fit(model, rows_of(clicks), epochs=0)
        first[job] = dense_values(job).copy()
        job.fit(model, rows_of(clicks))
    moved = {job: np.abs(dense_values(job) - first[job]).max() for job in (still, decayed)}
    assert moved[decayed] <= 0.011  # one full step, and next to nothing after it
    assert moved[still] > 0.05
