"""Where the time of steps goes: every part is told, and together they are the time of the steps."""

from __future__ import annotations

import threading
import time

import pytest
from fit_jobs import network, rows_of, trainer

from sparsefleet.communicator import HalfAsyncCommunicator
from sparsefleet.core.stopwatch import Stopwatch, lap, lapped, watch_this_thread
from sparsefleet.train.profile import PARTS, StepProfile


@pytest.mark.parametrize("threads", [1, 2])
def test_the_parts_are_the_time_of_the_steps(clicks, threads):
    began = time.perf_counter()
    job, model = trainer(threads=threads, profile=True), network()
    result = job.fit(model, rows_of(clicks), epochs=2)
    passed = time.perf_counter() - began
    profile = result.profile
    assert (profile.steps, profile.threads, list(profile.seconds)) == (result.steps, threads, list(PARTS))
    spent = sum(profile.seconds.values())
    assert spent <= threads * passed
    assert spent >= 0.5 * result.seconds, "threads do little besides their steps"
    assert all(profile.seconds[part] > 0 for part in PARTS)
    again = job.fit(model, rows_of(clicks))
    assert again.profile.steps == again.steps - result.steps, "of each call its own steps"


def test_no_time_is_taken_when_it_is_off(monkeypatch):
    taken = []
    monkeypatch.setattr(Stopwatch, "lap", lambda self, part: taken.append(part))
    lap("rows")
    with lapped("push", "waiting"):
        pass
    assert taken == []


def test_off_unless_asked_for(clicks):
    assert trainer().fit(network(), rows_of(clicks)).profile is None


def test_threads_that_wait_for_each_other_say_so(clicks):
    reader, slow = rows_of(clicks), threading.Lock()
    consumed = reader.consumed

    def one_is_slow(batch):
        if slow.acquire(blocking=False):
            time.sleep(0.02)  # the time that the other is to wait for
            slow.release()
        consumed(batch)

    reader.consumed = one_is_slow
    result = trainer(threads=2, profile=True, communicator=HalfAsyncCommunicator).fit(network(), reader)
    assert result.profile.seconds["waiting"] > 0.25 * result.profile.seconds["other"]


def test_milliseconds_a_step_and_percent():
    told = StepProfile(4, 2, {"rows": 0.001, "push": 0.003}).to_dict()
    assert told["ms_per_step"] == pytest.approx(1.0)
    assert told["parts"]["push"] == pytest.approx({"ms": 0.75, "percent": 75.0})
    assert StepProfile(0, 1, {"rows": 0.0}).to_dict()["parts"]["rows"] == {"ms": 0.0, "percent": 0.0}


def test_laps_go_to_the_thread_that_makes_them():
    seen = {}

    def work(name, seconds):
        watch = watch_this_thread()
        time.sleep(seconds)  # what is measured here is time
        with lapped("push", "waiting"):
            time.sleep(seconds)
        seen[name] = dict(watch.seconds)

    threads = [threading.Thread(target=work, args=(name, seconds)) for name, seconds in (("a", 0.02), ("b", 0.04))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, seconds in (("a", 0.02), ("b", 0.04)):
        assert set(seen[name]) == {"push", "waiting"}
        assert min(seen[name].values()) >= 0.9 * seconds
