"""Server 0's leases, without a network: trainers take pieces, come, leave, and are lost."""

from __future__ import annotations

import threading

import pytest
from waiting import wait_until

from sparsefleet.core.batch import Mark
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError, Disagreement, Rejoin, StoreError
from sparsefleet.server import ServerConfig
from sparsefleet.server.ledger import PUSH, Record, Step
from sparsefleet.server.members import Registration
from sparsefleet.server.state import ServerState
from sparsefleet.store.wire import WireError

EPOCH = "fit 1, epoch 1"
NUMBERS = 4


def state(mode: str = "async", workers: int = 2, **more: object) -> ServerState:
    settings: dict[str, object] = {"elastic": Elastic(1, NUMBERS), "lost_trainer": "drop", **more}
    made = ServerState(ServerConfig(workers=workers, endpoints=("a:1",), mode=mode, **settings))  # type: ignore[arg-type]
    for worker in range(workers):
        register(made, worker)
    return made


def register(made: ServerState, worker: int, life: str | None = None) -> str:
    life = life or f"life {worker}"
    numbers = NUMBERS if made.config.elastic else made.config.workers or 1
    made.sessions.register(
        life, Registration(worker, numbers, ("a:1",), 0, "x", mode=made.config.mode, attempt=made.attempt)
    )
    return life


def opened(made: ServerState, pieces: int = 4, workers: int = 2) -> None:
    book = made.leases
    for worker in range(workers):
        book.begin_run(worker, f"life {worker}", leased=True)
    assert book.open(0, "life 0", EPOCH, "plan", pieces, []) == {"wanted": True}
    assert book.open(0, "life 0", EPOCH, "plan", pieces, [], {"units": [], "files": ["a"]}, {"known": 1}) == {}
    for worker in range(1, workers):
        assert book.open(worker, f"life {worker}", EPOCH, "plan", pieces, []) == {}


def take(made: ServerState, worker: int, life: str | None = None) -> int | None:
    """The one piece that it gets: of so few, nobody takes several at once."""
    taken = made.leases.take(worker, life or f"life {worker}", EPOCH)["pieces"]
    assert len(taken) <= 1
    return taken[0][0] if taken else None


def mark_taken(made: ServerState, worker: int, life: str | None = None) -> list[int] | None:
    (taken,) = made.leases.take(worker, life or f"life {worker}", EPOCH)["pieces"]
    return taken[1]


def push(made: ServerState, worker: int, number: int, *marks: Mark, life: str | None = None) -> None:
    step = Step(made.account(worker, life or f"life {worker}", 0), number, 1, marks)
    assert made.ledger.apply(Record(PUSH, [step]), lambda: None, lambda reason: None)


def test_a_step_that_is_applied_tells_how_far_its_piece_is() -> None:
    made = state()
    opened(made)
    assert [take(made, 0), take(made, 1), take(made, 0)] == [0, 1, 2]
    push(made, 0, 1, Mark(0, 5, 50, False))
    push(made, 0, 2, Mark(0, 9, 90, True), Mark(2, 1, 10, False))
    assert made.leases.state() == {"name": EPOCH, "left": 3, "progress": [[0, 9, 90, True], [2, 1, 10, False]]}


def test_who_starts_trainers_again_can_ask_where_one_was_reading() -> None:
    made, units = state(), [["a", 0, 100], ["b", 0, 60], ["b", 60, 90], ["c", 0, 9]]
    for worker in range(2):
        made.leases.begin_run(worker, f"life {worker}", leased=True)
        made.leases.open(worker, f"life {worker}", EPOCH, "plan", 4, [], {"units": units})
    assert [take(made, 0), take(made, 1), take(made, 0)] == [0, 1, 2]
    push(made, 0, 1, Mark(0, 5, 50, False))
    assert made.leases.held_by(0) == [["a", 5, 50, 0], ["b", 0, 60, 60]]
    assert made.leases.held_by(1) == [["b", 0, 0, 0]]
    push(made, 0, 2, Mark(0, 9, 100, True))
    assert made.leases.held_by(0) == [["b", 0, 60, 60]]
    made.sessions.ended(1, "killed by SIGKILL", failed=False)
    assert [take(made, 0), take(made, 0)] == [1, 3]
    assert made.leases.held_by(0) == [["b", 0, 60, 60], ["b", 0, 0, 0], ["c", 0, 0, 0]], "as it reads them"
    assert made.leases.held_by(3) == [], "nobody has that number"
    strange = state()
    opened(strange)  # its position does not say what the pieces are
    assert take(strange, 0) == 0
    assert strange.leases.held_by(0) == []


def test_a_lost_trainers_pieces_go_on_from_where_they_are_and_what_it_sent_late_is_refused() -> None:
    made = state()
    opened(made, 2)
    assert [take(made, 0), take(made, 1)] == [0, 1]
    push(made, 1, 1, Mark(1, 3, 30, False))
    late = Step(made.account(1, "life 1", 0), 2, 1, [Mark(1, 4, 40, False)])
    made.sessions.ended(1, "killed by SIGKILL", failed=False)
    assert mark_taken(made, 0) == [3, 30]
    with pytest.raises(StoreError, match="the others went on without worker 1: its data is theirs now"):
        made.ledger.apply(Record(PUSH, [late]), lambda: pytest.fail("it counts"), lambda reason: None)


def test_a_part_of_the_open_round_is_applied_before_its_lost_trainers_pieces_are_handed_back() -> None:
    made = state("sync")
    opened(made, 2)
    assert [take(made, 0), take(made, 1)] == [0, 1]
    part = Step(made.account(1, "life 1", 0), 1, 1, [Mark(1, 1, -1, False)])
    dead = threading.Thread(target=lambda: made.rounds.contribute(part, [], lambda reason: None), daemon=True)
    dead.start()
    wait_until(lambda: made.rounds.waiting, 10, "a part of a round")
    made.sessions.ended(1, "killed by SIGKILL", failed=False)
    assert take(made, 0) is None, "its part is still to come"
    made.rounds.contribute(Step(made.account(0, "life 0", 0), 1, 1, [Mark(0, 1, -1, True)]), [], lambda reason: None)
    dead.join(10)
    assert mark_taken(made, 0) == [1, -1]


def test_laps_hand_out_again_what_is_left() -> None:
    made = state()
    opened(made, 2)
    assert [take(made, 0), take(made, 1), take(made, 0)] == [0, 1, None]
    push(made, 0, 1, Mark(0, 1, -1, True))
    made.sessions.ended(1, "killed by SIGKILL", failed=False)
    assert made.leases.end_lap(0, "life 0", EPOCH, 1) == {"left": 1}
    assert made.leases.end_lap(0, "life 0", EPOCH, 1) == {"left": 1}, "asked again"
    assert take(made, 0) == 1
    push(made, 0, 2, Mark(1, 1, -1, True))
    assert made.leases.end_lap(0, "life 0", EPOCH, 2) == {"left": 0}


def test_one_that_comes_late_is_let_in_while_a_lap_is_under_way() -> None:
    made = state("sync", workers=1)
    opened(made, workers=1)
    assert made.sessions.give_number("late") == 1 == made.sessions.give_number("late")
    assert made.sessions.give_number("later") == 2
    register(made, 1, "late")
    assert made.sessions.comes_late(1)
    assert made.sessions.in_meetings() == {0}, "nobody waits for it"
    assert made.leases.enter(1, "late", 0.0) == {}, "nobody has begun"
    assert take(made, 0) == 0
    told = made.leases.enter(1, "late", 0.0)
    assert (told["name"], told["laps"], told["told"]) == (EPOCH, 0, {"known": 1})
    assert made.sessions.in_meetings() == {0, 1}
    assert take(made, 1, "late") == 1, "by turns"
    made.rounds.enter(1, "late")
    assert made.sessions.in_rounds() == {0}, "from the round after the open one on"
    made.rounds.contribute(Step(made.account(0, "life 0", 0), 1, 1), [], lambda reason: None)
    assert made.sessions.in_rounds() == {0, 1}


def test_one_that_comes_late_tells_no_norm_before_its_first_round_is_open() -> None:
    """Clipped rounds have their norm before them: in the norm of a round that is open without it, it would be waited
    for in that round."""
    made = state("sync", workers=1)
    opened(made, workers=1)
    assert take(made, 0) == 0
    register(made, 1, "late")
    made.leases.enter(1, "late", 0.0)
    made.rounds.enter(1, "late")
    held_off, let_in = threading.Event(), threading.Event()

    def tell_norm() -> None:
        made.rounds.wait_to_be_let_in(made.account(1, "late", 0), lambda reason: held_off.set())
        let_in.set()

    late = threading.Thread(target=tell_norm, daemon=True)
    late.start()
    assert held_off.wait(10)
    assert not let_in.is_set()
    made.rounds.contribute(Step(made.account(0, "life 0", 0), 1, 1), [], lambda reason: None)
    assert let_in.wait(10)
    late.join(10)


def test_one_that_comes_late_and_leaves_before_its_first_round_is_waited_for_in_none() -> None:
    made = state("sync", workers=1)
    opened(made, workers=1)
    assert take(made, 0) == 0
    register(made, 1)
    assert made.leases.enter(1, "life 1", 1.0)["name"] == EPOCH
    made.rounds.enter(1, "life 1")
    made.rounds.leave(1, "life 1")  # there was no piece for it
    made.sessions.leave(1, "life 1", False)
    for number in (1, 2):
        step = Step(made.account(0, "life 0", 0), number, 1)
        assert made.rounds.contribute(step, [], lambda reason: pytest.fail(f"it waits: {reason}")) == number


def test_where_nobody_is_in_the_rounds_a_late_one_is_at_once() -> None:
    made = state("sync", workers=1)
    opened(made, workers=1)
    assert take(made, 0) == 0
    register(made, 1, "late")
    made.leases.enter(1, "late", 0.0)
    made.sessions.leave(0, "life 0", for_good=False)
    made.rounds.enter(1, "late")
    assert made.sessions.in_rounds() == {1}
    assert made.rounds.contribute(Step(made.account(1, "late", 0), 1, 1), [], lambda reason: None) == 1


def test_nobody_is_let_in_between_laps() -> None:
    made = state(workers=1)
    opened(made, 1, workers=1)
    assert [take(made, 0), take(made, 0)] == [0, None]
    register(made, 1, "late")
    made.meetings.meet(("barrier", f"{EPOCH}: nothing left to take", 1), 0, "life 0", None, 0.1)
    assert made.leases.enter(1, "late", 0.0) == {}
    made.sessions.stop(0, "life 0")
    assert made.leases.enter(1, "late", 0.0) == {"over": True}


def test_those_that_are_too_many_leave() -> None:
    made = state(workers=3)
    opened(made, 9, workers=3)
    assert made.sessions.scale(1) == {"present": [0, 1, 2], "leaving": [1, 2]}
    assert made.leases.take(2, "life 2", EPOCH).get("leave") is True
    assert made.sessions.scale(2)["leaving"] == [2], "one of them may stay after all"
    assert take(made, 1) == 0
    made.sessions.leave(2, "life 2", for_good=True)
    made.leases.left(2)
    assert made.sessions.scaled_to() == {"request": 2, "workers": 2, "present": [0, 1]}


def test_a_lost_trainer_of_a_job_that_heals_is_retired_and_comes_again() -> None:
    made = state(elastic=None, attempt=1)
    opened(made, 2)
    assert [take(made, 0), take(made, 1)] == [0, 1]
    push(made, 1, 1, Mark(1, 2, 20, False))
    assert made.retire(1) == {"accounts": {"1/life 1/0": [1, 1]}} == made.retire(1)
    with pytest.raises(StoreError, match="the others went on without worker 1"):
        push(made, 1, 2, Mark(1, 3, 30, False))
    register(made, 1, "again")
    assert made.sessions.comes_late(1)
    assert made.leases.enter(1, "again", 0.0)["name"] == EPOCH
    assert mark_taken(made, 1, "again") == [2, 20]
    assert made.retire(0)["accounts"] == {}


def test_the_last_that_takes_part_is_not_gone_on_without_and_no_job_of_lost_trainers_is_over() -> None:
    """Between laps nobody is let in: both lives would be told that the job had come to its end, and no model saved."""
    made = state(elastic=None, attempt=1)
    opened(made, 2)
    made.retire(0)
    register(made, 0, "again")
    assert made.leases.enter(0, "again", 0.0) == {}
    with pytest.raises(StoreError, match="worker 1 is the last that takes part"):
        made.retire(1)
    assert made.sessions.retired() == []
    with made.sessions.changed:
        made.sessions._trainers[1].dropped = True  # however that came to be
    assert made.leases.enter(0, "again", 0.0) == {}


def test_a_lost_trainer_is_not_gone_on_without_once_data_is_shared_out() -> None:
    made = state(elastic=None, attempt=1)
    opened(made, 2)
    assert take(made, 0) == 0
    for worker in (0, 1):
        made.leases.begin_run(worker, f"life {worker}", leased=False)
    with pytest.raises(StoreError, match="worker 1 has a share of the data of its own"):
        made.retire(1)
    assert made.leases.stats() == {"pass": "", "pieces": 0, "left": 0, "untaken": 0}
    made.leases.begin_run(0, "life 0", leased=True)
    assert made.retire(1) == {"accounts": {}}


def test_shares_are_not_trained_while_one_that_was_gone_on_without_is_not_back() -> None:
    made = state(elastic=None, attempt=1)
    opened(made, 2)
    assert take(made, 0) == 0
    made.retire(1)
    with pytest.raises(Rejoin, match=r"worker 1 .* was lost and is not back"):
        made.leases.begin_run(0, "life 0", leased=False)
    register(made, 1, "again")
    with pytest.raises(Rejoin, match=r"worker 1 .* was lost and is not back"):
        made.leases.begin_run(0, "life 0", leased=False)
    assert made.leases.enter(1, "again", 0.0)["name"] == EPOCH
    made.leases.begin_run(0, "life 0", leased=False)


def test_what_a_lost_trainer_had_not_trained_of_its_share_stays_missing() -> None:
    made = state(elastic=None, workers=3)
    opened(made, 2, workers=3)
    made.sessions.ended(2, "killed by SIGKILL", failed=False)

    def missing() -> list[str]:
        return [name.partition(" (")[0] for name in made.sessions.unfinished() if "SIGKILL" in name]

    assert missing() == [], "others train its pieces"
    made.leases.begin_run(0, "life 0", leased=False)
    assert missing() == ["worker 2"], "of this call it has a share"
    made.leases.begin_run(0, "life 0", leased=True)
    made.sessions.ended(1, "killed by SIGKILL", failed=False)
    assert missing() == ["worker 2"]


def test_too_few_trainers_end_the_job() -> None:
    made = state(elastic=Elastic(2, NUMBERS))
    with made.sessions.changed:
        error = made.sessions.go_on_without("a barrier", [1])
    assert "so that 1 trainers are left, and it needs 2" in str(error)
    assert made.sessions.broken is not None


def test_what_makes_no_sense_is_refused() -> None:
    made = state()
    opened(made)
    with pytest.raises(Disagreement, match="worker 1 reads other files"):
        made.leases.open(1, "life 1", EPOCH, "another plan", 4, [])
    with pytest.raises(StoreError, match="the leases are of 'fit 1, epoch 1', not of 'fit 2, epoch 1'"):
        made.leases.take(1, "life 1", "fit 2, epoch 1")
    with pytest.raises(WireError, match="a mark is"):
        made.leases.note(1, "life 1", EPOCH, [[1, 2, "x", True]])
    with pytest.raises(StoreError, match="this job takes 1 to 4 trainers"):
        made.sessions.scale(5)
    with pytest.raises(StoreError, match="trainers of this job do not come and go"):
        state(elastic=None).sessions.scale(1)
    with pytest.raises(ConfigError, match="cannot begin with 5"):
        state(workers=5)
    with pytest.raises(ConfigError, match="'1-4' is not MIN:MAX trainers"):
        Elastic.parse("--elastic", "1-4")


def test_nobody_goes_on_without_a_trainer_that_is_outside_of_fit() -> None:
    """Its script may be about to save for all there; the others know that they are not to."""
    made = state(elastic=None, attempt=1)
    opened(made, 2)
    for worker in (0, 1):
        made.meetings.meet(("reduce", "cut: the end", 1), worker, f"life {worker}", {}, 0.0)
    with pytest.raises(StoreError, match="worker 1 was outside of fit"):
        made.retire(1)
    made.leases.begin_run(0, "life 0", leased=True)
    with pytest.raises(StoreError, match="worker 1 was outside of fit"):
        made.retire(1)
    made.leases.begin_run(1, "life 1", leased=True)
    assert made.retire(1) == {"accounts": {}}
    register(made, 1, "again")
    assert made.retire(1) == {"accounts": {}}, "it had done nothing yet"
    register(made, 1, "once more")
    made.leases.begin_run(1, "once more", leased=True)
    with made.sessions.changed:
        made.sessions.end_run()
    with pytest.raises(StoreError, match="worker 1 was outside of fit"):
        made.retire(1)


def test_no_pass_takes_the_place_of_one_that_is_under_way() -> None:
    """One that was started again could open a pass that the others had before, or one that they have not come to."""
    made = state(elastic=None, attempt=1)
    opened(made, 2)
    assert [take(made, 0), take(made, 1)] == [0, 1]
    with pytest.raises(StoreError, match=r"worker 1 opens 'fit 1, evaluation 1' while .* 2 pieces are left"):
        made.leases.open(1, "life 1", "fit 1, evaluation 1", "plan", 2, [], {})
    push(made, 0, 1, Mark(0, 2, 20, True))
    push(made, 1, 1, Mark(1, 2, 20, True))
    made.leases.open(1, "life 1", "fit 1, evaluation 1", "plan", 2, [], {})
    assert made.leases.stats()["pass"] == "fit 1, evaluation 1"
