"""A run stands still for its own saves and for those of others, also for both at once."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from sparsefleet.train.cut_member import RunCutMember
from sparsefleet.train.training_state import TrainingState


class Communicator:
    keeps_back = True
    flushes = 0

    def parked(self) -> int:
        return 0

    def flush(self) -> None:
        self.flushes += 1


def member_of_a_run(steps: int) -> RunCutMember:
    progress = SimpleNamespace(step=0)
    member = RunCutMember(SimpleNamespace(holds_pushes=True), progress, lambda: TrainingState(step=progress.step))
    member.communicator = Communicator()
    progress.step = steps
    return member


def in_another_thread(act) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_who_resumes_first_does_not_set_the_other_one_going():
    member = member_of_a_run(steps=40)
    in_another_thread(member.pause)  # another trainer saves, and dies
    member.pause()  # so this one does
    assert not member.gate.quiet
    member.resume()
    assert not member.gate.quiet, "the other one has not resumed"


def test_a_run_that_stands_still_need_not_be_in_step_with_the_servers():
    """It has sent all it kept back, and what servers count of a trainer that only speaks now and then is less."""
    member = member_of_a_run(steps=40)
    answering = threading.Thread(target=lambda: (member.pause(), member.resume()))
    member.pause()
    answering.start()
    answering.join(timeout=10)
    assert member.report(applied=0)["step"] == 40  # at once; else it would wait for a minute, and give up
    member.resume()
    assert member.gate.quiet
    assert member.communicator.flushes == 2


def test_pausing_twice_is_pausing_once():
    member = member_of_a_run(steps=0)
    member.pause()
    member.pause()
    member.resume()
    assert member.gate.quiet
    member.resume()


def test_it_stands_still_only_where_the_position_holds_every_step():
    """A thread that took a batch from another's queue was faster than that queue's own thread."""
    progress, looks = SimpleNamespace(step=0), iter([False, False, True])
    store = SimpleNamespace(holds_pushes=False)
    member = RunCutMember(store, progress, lambda: TrainingState(step=progress.step), lambda: next(looks))
    member.communicator = SimpleNamespace(parked=lambda: 0, keeps_back=False, flush=lambda: None)
    member.pause()
    assert next(looks, None) is None
    assert not member.gate.quiet
    member.resume()
    assert member.gate.quiet
