"""A run stands still for its own saves and for those of others, also for both at once."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from sparsefleet.train.moment import RunMoment
from sparsefleet.train.saving import TrainingState


class Communicator:
    keeps_back = True
    flushes = 0

    def parked(self) -> int:
        return 0

    def flush(self) -> None:
        self.flushes += 1


def moment_of_a_run(steps: int) -> RunMoment:
    progress = SimpleNamespace(step=0)
    moment = RunMoment(SimpleNamespace(holds_pushes=True), progress, lambda: TrainingState(step=progress.step))
    moment.communicator = Communicator()
    progress.step = steps
    return moment


def in_another_thread(act) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_who_resumes_first_does_not_set_the_other_one_going():
    moment = moment_of_a_run(steps=40)
    in_another_thread(moment.pause)  # another trainer saves, and dies
    moment.pause()  # so this one does
    assert not moment.gate.quiet
    moment.resume()
    assert not moment.gate.quiet, "the other one has not resumed"


def test_a_run_that_stands_still_need_not_be_in_step_with_the_servers():
    """It has sent all it kept back, and what servers count of a trainer that only speaks now and then is less."""
    moment = moment_of_a_run(steps=40)
    answering = threading.Thread(target=lambda: (moment.pause(), moment.resume()))
    moment.pause()
    answering.start()
    answering.join(timeout=10)
    assert moment.report(applied=0)["step"] == 40  # at once; else it would wait for a minute, and give up
    moment.resume()
    assert moment.gate.quiet
    assert moment.communicator.flushes == 2


def test_pausing_twice_is_pausing_once():
    moment = moment_of_a_run(steps=0)
    moment.pause()
    moment.pause()
    moment.resume()
    assert moment.gate.quiet
    moment.resume()


def test_it_stands_still_only_where_the_position_holds_every_step():
    """A thread that took a batch from another's queue was faster than that queue's own thread."""
    progress, looks = SimpleNamespace(step=0), iter([False, False, True])
    store = SimpleNamespace(holds_pushes=False)
    moment = RunMoment(store, progress, lambda: TrainingState(step=progress.step), lambda: next(looks))
    moment.communicator = SimpleNamespace(parked=lambda: 0, keeps_back=False, flush=lambda: None)
    moment.pause()
    assert next(looks, None) is None
    assert not moment.gate.quiet
    moment.resume()
    assert moment.gate.quiet
