"""The gate between steps and saves, and the loop of threads: nobody hangs, every error comes out."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fit_jobs import every, network, rows_of, trainer
from waiting import stands_waiting, wait_until

from sparsefleet.core.errors import CheckpointError, DataError, StoreError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data import Feeder, PyReader
from sparsefleet.data.base import BatchStream, Epoch
from sparsefleet.train import SavePolicy
from sparsefleet.train.gate import Gate
from sparsefleet.train.threads import run_threads

WAIT = 10.0


def in_threads(*jobs):
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def ended(threads):
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@contextmanager
def alone(gate: Gate) -> Iterator[None]:
    """What a thread that names a cut does: inside, no other thread makes a step."""
    with gate.aside():
        gate.close()
        try:
            yield
        finally:
            gate.open()


def test_alone_means_that_nobody_else_is_within_a_step():
    gate, inside, wrong, times = Gate(), [0], [], [0]
    lock = threading.Lock()

    def work(index):
        for number in range(200):
            with gate.step():
                with lock:
                    inside[0] += 1
                time.sleep(0)  # lets other threads in
                with lock:
                    inside[0] -= 1
                if number % 20 == index:
                    with alone(gate):
                        times[0] += 1
                        before = inside[0]
                        time.sleep(0.0005)  # others have the time to go wrong
                        if before or inside[0]:
                            wrong.append(inside[0])

    ended(in_threads(*(lambda index=index: work(index) for index in range(4))))
    assert not wrong
    assert times[0] == 40
    assert gate.quiet


def test_a_thread_that_waits_for_input_holds_nobody_up():
    gate, input_came = Gate(), threading.Event()

    def reads():
        with gate.step():
            pass
        input_came.wait(WAIT)
        with gate.step():
            pass

    def saves():
        with gate.step(), alone(gate):
            pass

    reader, saver = in_threads(reads, saves)
    ended([saver])
    assert reader.is_alive()
    input_came.set()
    ended([reader])


def test_those_who_come_while_one_is_alone_wait():
    gate, entered, release, order = Gate(), threading.Event(), threading.Event(), []

    def saves():
        with gate.step(), alone(gate):
            entered.set()
            release.wait(WAIT)
            order.append("save")

    def steps():
        entered.wait(WAIT)
        with gate.step():
            order.append("step")

    threads = in_threads(saves, steps)
    entered.wait(WAIT)
    wait_until(lambda: stands_waiting(threads[1]), WAIT, "the step that waits for the save")
    assert not order
    assert not gate.quiet
    release.set()
    ended(threads)
    assert order == ["save", "step"]


def test_an_error_opens_the_gate_again():
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate.step(), alone(gate):
        raise ZeroDivisionError
    assert gate.quiet
    ended(in_threads(lambda: gate.step().__enter__()))


def test_who_waits_at_a_gate_that_nobody_will_open_gets_the_error():
    gate, errors = Gate(), []
    gate.close()

    def step() -> None:
        try:
            with gate.step():
                pass
        except StoreError as error:
            errors.append(str(error))

    thread = threading.Thread(target=step)
    thread.start()
    gate.fail(StoreError("server 0 is dead"))
    thread.join(timeout=10)
    step()  # whoever comes later gets it too
    assert errors == ["server 0 is dead"] * 2


def test_one_that_was_aside_ends_its_step_all_the_same():
    gate = Gate()
    with gate.step():
        with gate.aside():
            gate.fail(StoreError("server 0 is dead"))
        assert not gate.quiet
    assert gate.quiet


def test_waiting_until_quiet_gives_up_on_a_step_but_not_on_a_save():
    gate, release = Gate(), threading.Event()

    def steps():
        with gate.step():
            release.wait(WAIT)

    threads = in_threads(steps)
    wait_until(lambda: not gate.quiet, WAIT, "a step")
    assert gate.wait_until_quiet(0.05) is False
    release.set()
    ended(threads)
    assert gate.wait_until_quiet(0.05) is True

    def saves():
        with gate.step(), alone(gate):
            time.sleep(0.4)  # a save takes longer than the limit below

    threads = in_threads(saves)
    wait_until(lambda: not gate.quiet, WAIT, "a save")
    assert gate.wait_until_quiet(0.05) is True
    ended(threads)


# -- the loop ----------------------------------------------------------------------------------------------------------


class Numbers(BatchStream):
    """Endless; after `stop_after` batches it blocks until it is closed."""

    def __init__(self, stop_after=None, error=None):
        self.given, self._stop_after, self._error = 0, stop_after, error
        self._closed = threading.Event()

    def __next__(self):
        if self.given == self._stop_after:
            if self._error:
                raise self._error
            self._closed.wait(WAIT)
        if self._closed.is_set():
            raise StopIteration
        self.given += 1
        return self.given

    def close(self):
        self._closed.set()


def nothing(*ignored):
    pass


def test_an_error_in_one_thread_ends_the_others_and_comes_out():
    streams = [Numbers(), Numbers(stop_after=3)]  # one always busy, one that waits for input
    left = []

    def work(index, batch):
        if index == 0 and batch == 50:
            raise ZeroDivisionError("in a step")

    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="in a step"):
        run_threads(Epoch(streams), work, Gate(), nothing, lambda index, error: left.append(index))
    assert time.monotonic() - begun < 2
    assert sorted(left) == [0, 1]


def test_an_error_of_a_reader_comes_out_too():
    streams = [Numbers(), Numbers(stop_after=3, error=DataError("line 7 is bad"))]
    with pytest.raises(DataError, match="line 7 is bad"):
        run_threads(Epoch(streams), nothing, Gate(), nothing)


def test_an_error_on_leaving_comes_out():
    def leave(index, error):
        raise OSError("no farewell")

    stream = Numbers()
    stream.close()
    with pytest.raises(OSError, match="no farewell"):
        run_threads(Epoch([stream]), nothing, Gate(), nothing, leave)


def test_an_error_of_the_watcher_ends_the_threads():
    steps = []

    def tick():
        raise KeyboardInterrupt

    gate = Gate()
    with pytest.raises(KeyboardInterrupt):
        run_threads(Epoch([Numbers(), Numbers()]), lambda index, batch: steps.append(batch), gate, tick)
    made = len(steps)
    time.sleep(0.05)  # nobody goes on behind our back, now or later
    assert len(steps) == made
    assert gate.quiet


def test_a_thread_stuck_in_its_input_does_not_hold_up_an_error():
    class Stuck(Numbers):
        def close(self):
            pass  # a user's generator that cannot be woken

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_threads(Epoch([Stuck(stop_after=0)]), nothing, Gate(), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert time.monotonic() - begun < 1.9


@pytest.mark.parametrize("repeat", range(3))
def test_a_real_ctrl_c_waits_for_the_step_under_way(repeat):
    """In Python 3.11 a join that a signal interrupts forgets that its thread is running."""
    within, ended_steps = threading.Event(), []

    def work(index, batch):
        within.set()
        time.sleep(0.3)  # whoever does not wait for this step is gone by its end
        ended_steps.append(batch)

    def interrupt():
        within.wait(WAIT)
        os.kill(os.getpid(), signal.SIGINT)

    gate = Gate()
    (finger,) = in_threads(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_threads(Epoch([Numbers()]), work, gate, nothing)
    finger.join(WAIT)
    assert ended_steps == [1]
    assert gate.quiet


def test_all_batches_are_worked_on():
    class Few(Numbers):
        def __next__(self):
            if self.given == 10:
                raise StopIteration
            return super().__next__()

    done = []
    run_threads(Epoch([Few(), Few(), Few()]), lambda index, batch: done.append((index, batch)), Gate(), nothing)
    assert sorted(done) == [(index, batch) for index in range(3) for batch in range(1, 11)]


# -- in a real run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "memory", "pyreader", "feeder"])
def test_a_step_that_fails_in_one_of_two_threads(clicks, kind):
    reader, consumed = rows_of(clicks, kind), []
    noted = reader.consumed

    def fails(batch):
        consumed.append(batch)
        if len(consumed) == 20:
            raise ZeroDivisionError("step 20")
        noted(batch)

    reader.consumed = fails
    with pytest.raises(ZeroDivisionError, match="step 20"):
        trainer(2).fit(network(), reader)
    reader.consumed = noted
    assert trainer(2).fit(network(), reader).rows == 6000  # the reader can be used again


def test_a_users_generator_that_fails(clicks):
    def rows():
        with rows_of(clicks).epoch(1) as epoch:
            for number, batch in enumerate(epoch.streams[0]):
                if number == 5:
                    raise LookupError("no more clicks")
                yield batch

    for reader in (PyReader(CRITEO, rows, 100), Feeder(CRITEO, rows)):
        for threads in (1, 2):
            with pytest.raises(LookupError, match="no more clicks"):
                trainer(threads).fit(network(), reader)


@pytest.mark.parametrize("make", [Feeder, PyReader])
def test_a_users_generator_that_hangs_is_left_behind(clicks, make):
    wake = threading.Event()

    def rows():
        with rows_of(clicks).epoch(1) as epoch:
            yield next(epoch.streams[0])
            yield next(epoch.streams[0])
        wake.wait(WAIT)

    class Stop:
        fetch_list = ("auc",)

        def __init__(self):
            self.at = time.monotonic() + 0.3

        def after_step(self, step, fetch):
            pass

        def tick(self, fetch):
            if time.monotonic() > self.at:
                raise KeyboardInterrupt

    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer(2).fit(network(), make(CRITEO, rows), fetch=[Stop()])
        assert time.monotonic() - begun < 0.3 + 2
    finally:
        wake.set()


def test_a_save_that_fails_ends_the_run_with_its_error(clicks, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="file"):
        trainer(2).fit(network(), rows_of(clicks), save=SavePolicy(str(tmp_path / "file" / "x"), every_steps=10))


def test_saves_of_many_threads_do_not_hang(clicks, tmp_path):
    result = trainer(4).fit(network(), rows_of(clicks), save=SavePolicy(str(tmp_path), every_steps=3, keep=2))
    assert result.rows == 6000


def test_a_slow_reader_holds_up_no_save(clicks, tmp_path):
    """One thread waits for its next batch until the other has saved."""
    from sparsefleet.checkpoint import latest

    def rows():
        with rows_of(clicks).epoch(1) as epoch:
            yield from (next(epoch.streams[0]) for _ in range(6))  # each thread holds one back
            wait_until(lambda: list(tmp_path.glob("step-*")), 30, "a save while a thread waits for input")
            yield from (next(epoch.streams[0]) for _ in range(2))

    result = trainer(2).fit(network(), Feeder(CRITEO, rows), save=every(tmp_path, 2))
    assert result.rows == 800
    assert latest(tmp_path).name == "step-00000008"
