"""The handing out of pieces, as pure logic: whatever happens, every sample is trained once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.leases import MOST_AT_ONCE, Lease, Leases

SAMPLES = 5
"""Of each piece."""


class Trainers:
    """Trainers that take pieces and train samples one by one; some die, others come."""

    def __init__(self, leases: Leases, crew: int) -> None:
        self.leases, self.counts = leases, [[0] * SAMPLES for _ in range(leases.pieces)]
        self.holding: dict[str, tuple[int, int] | None] = {}
        """By life, the piece that it reads and the sample that comes next."""
        self.numbers: dict[str, int] = {}
        self.born = 0
        for _ in range(crew):
            self.join()

    def join(self) -> None:
        self.holding[f"life {self.born}"] = None
        self.numbers[f"life {self.born}"] = self.born
        self.born += 1
        self.leases.deal(self.numbers.values())

    def die(self, life: str) -> None:
        del self.holding[life], self.numbers[life]
        self.leases.hand_back(life)
        self.leases.deal(self.numbers.values())

    def work(self, life: str) -> bool:
        """One sample, or the taking of a piece; False where there is nothing to do."""
        if self.holding[life] is None:
            lease = self.leases.take(life, self.numbers[life])
            if lease is None:
                return False
            self.holding[life] = (lease.piece, lease.mark.samples if lease.mark else 0)
            return True
        piece, sample = self.holding[life]  # type: ignore[misc]
        self.counts[piece][sample] += 1
        done = sample + 1 == SAMPLES
        self.leases.note(life, [Mark(piece, sample + 1, -1, done)])
        self.holding[life] = None if done else (piece, sample + 1)
        return True


@settings(max_examples=200, deadline=None)
@given(pieces=st.integers(0, 8), crew=st.integers(1, 4), fixed=st.booleans(), seed=st.integers(0, 10_000))
def test_every_sample_is_trained_once_whoever_dies_or_joins(pieces: int, crew: int, fixed: bool, seed: int) -> None:
    chance, leases = random.Random(seed), Leases(pieces, fixed=fixed)
    trainers, events = Trainers(leases, crew), 6
    while leases.left:
        life = chance.choice(sorted(trainers.holding))
        if events and chance.random() < 0.1:
            events -= 1
            if chance.random() < 0.5 and len(trainers.holding) > 1:
                trainers.die(life)
            else:
                trainers.join()
        else:
            trainers.work(life)
    assert trainers.counts == [[1] * SAMPLES] * pieces
    assert leases.untaken == 0
    assert leases.samples == pieces * SAMPLES


@settings(max_examples=100, deadline=None)
@given(pieces=st.integers(1, 8), cut=st.integers(0, 40), crew=st.integers(1, 4), then=st.integers(1, 4))
def test_from_a_cut_any_number_of_trainers_goes_on(pieces: int, cut: int, crew: int, then: int) -> None:
    leases = Leases(pieces)
    before = Trainers(leases, crew)
    for turn in range(cut):
        before.work(f"life {turn % crew}")
    kept = dict(leases.marks)  # the leases of that moment; who held what does not matter
    resumed = Leases(pieces, kept)
    after = Trainers(resumed, then)
    after.counts = [list(counts) for counts in before.counts]
    while resumed.left:
        for life in list(after.holding):
            after.work(life)
    assert after.counts == [[1] * SAMPLES] * pieces


def test_in_fixed_order_it_does_not_matter_who_asks_first() -> None:
    def shares(order: list[int]) -> dict[int, list[int]]:
        leases, got = Leases(7, fixed=True), {number: list[int]() for number in range(3)}
        leases.deal(range(3))
        for number in order:
            if lease := leases.take(f"life {number}", number):
                got[number].append(lease.piece)
        return got

    assert shares([0, 1, 2] * 3) == shares([2] * 3 + [0] * 3 + [1] * 3) == {0: [0, 3, 6], 1: [1, 4], 2: [2, 5]}


@pytest.mark.parametrize("fixed", [False, True])
def test_many_pieces_are_taken_some_at_a_time_and_the_last_ones_one_by_one(fixed: bool) -> None:
    leases, turns = Leases(64, fixed=fixed), list[list[int]]()
    leases.deal([0, 1])
    while leases.untaken:
        for number in (0, 1):
            if taken := [lease.piece for lease in leases.take_some(f"life {number}", number)]:
                turns.append(taken)
    assert sorted(piece for taken in turns for piece in taken) == list(range(64))
    sizes = [len(taken) for taken in turns]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == MOST_AT_ONCE
    assert sizes[-8:] == [1] * 8
    assert len(turns) < 32, "messages"
    assert leases.take_some("life 0", 0) == leases.take_some("late", 1) == []


def test_in_fixed_order_a_resumed_crew_has_the_same_pieces() -> None:
    leases = Leases(4, {0: Mark(0, 5, -1, True), 2: Mark(2, 1, -1, False)}, fixed=True)  # trainer 0 is ahead
    leases.deal(range(2))
    assert [leases.take("a", 0), leases.take("b", 1), leases.take("b", 1)] == [
        Lease(2, Mark(2, 1, -1, False)),
        Lease(1),
        Lease(3),
    ]


def test_a_trainer_says_nothing_of_pieces_that_are_not_its_own_any_more() -> None:
    leases = Leases(1)
    leases.take("old", 0)
    leases.note("old", [Mark(0, 2, -1, False)])
    leases.hand_back("old")
    assert leases.take("new", 0) == Lease(0, Mark(0, 2, -1, False))
    leases.note("old", [Mark(0, 5, -1, True)])  # too late
    assert leases.left == 1
    leases.note("new", [Mark(0, 1, -1, False)])  # never back
    assert leases.marks[0].samples == 2


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="pieces=-1 must be 0 or above"):
        Leases(-1)
