"""The handing out of data as a small model, and a search through everything that can happen to it.

Trainers work through pieces of some samples each; a step is one sample. Server 0 keeps the leases (`server/leases.py`).

    take        a trainer gets an open piece, from the sample after the last one that is in the model; or there is none
                for it, and it goes to the meeting at the lap's end
    send        its next step is under way; messages take their time
    deliver     the server applies a step, and notes how far the piece is with it
    die         a trainer ends; what it had sent may still arrive
    hand back   the server has noticed: the lost trainer's pieces are open again
    join        one more trainer takes part, while a lap is under way
    lap         all trainers have met: what is not done is open again, for another lap; or the epoch is over

`RULES` are what makes it right. `explore` goes through all states that can be reached, and names the first fault: a
sample trained twice or left out, or an epoch that never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from search import Fault, search, with_item

RULES = {
    "former lives are refused": "before a lost trainer's pieces are handed back, nothing of its life is taken any more",
    "marks come with steps": "how far a piece is changes in the same moment as the model",
    "laps": "an epoch is over when all pieces are done, not when nobody gets another one",
    "who joins is waited for": "a lap ends when all have met, also those that came after it had begun",
}
ALL = frozenset(RULES)
OPEN = -1


class Trainer(NamedTuple):
    alive: bool
    life: int
    """0: it has not come yet."""
    piece: int = OPEN
    sample: int = 0
    sent: bool = False
    """The step of that sample is under way."""
    met: bool = False


class State(NamedTuple):
    counts: tuple[tuple[int, ...], ...]
    """By piece and sample, how often it is in the model."""
    marks: tuple[int, ...]
    """By piece, how many of its samples are, as server 0 knows."""
    holders: tuple[tuple[int, int] | None, ...]
    """By piece, trainer and life."""
    trainers: tuple[Trainer, ...]
    network: frozenset[tuple[str, int, int, int, int]]
    """What (step or mark), trainer, life, piece, sample."""
    closed: frozenset[tuple[int, int]]
    over: bool
    deaths: int


def start(trainers: int, joiners: int, pieces: int, samples: int, deaths: int) -> State:
    there = tuple(Trainer(True, 1) for _ in range(trainers))
    later = tuple(Trainer(False, 0) for _ in range(joiners))
    counts = ((0,) * samples,) * pieces
    return State(counts, (0,) * pieces, (None,) * pieces, there + later, frozenset(), frozenset(), False, deaths)


def moves(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    samples = len(state.counts[0])
    for number, trainer in enumerate(state.trainers):
        if not trainer.alive:
            yield from _come_or_go(state, number, rules)
            continue
        if state.deaths:
            yield f"trainer {number} dies", _set(state._replace(deaths=state.deaths - 1), number, alive=False)
        if trainer.piece == OPEN and not trainer.met:
            yield _take(state, number, samples)
        elif trainer.piece != OPEN and not trainer.sent:
            step = ("step", number, trainer.life, trainer.piece, trainer.sample)
            sent = state._replace(network=state.network | {step})
            yield f"trainer {number} sends sample {step[3:]}", _set(sent, number, sent=True)
    for message in sorted(state.network):
        yield _delivered(state, message, rules)
    yield from _laps(state, rules)


def _come_or_go(state: State, number: int, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    trainer = state.trainers[number]
    if trainer.life == 0:
        if not all(one.met for one in state.trainers if one.alive):
            yield f"trainer {number} joins", _set(state, number, alive=True, life=1)
    elif (number, trainer.life) in state.holders or (number, trainer.life) not in state.closed:
        life = (number, trainer.life)
        if "former lives are refused" in rules:
            state = state._replace(closed=state.closed | {life})
        elif life not in state.holders:
            return
        holders = tuple(None if holder == life else holder for holder in state.holders)
        yield f"what trainer {number} held is handed back", state._replace(holders=holders)


def _take(state: State, number: int, samples: int) -> tuple[str, State]:
    life = (number, state.trainers[number].life)
    for piece, holder in enumerate(state.holders):
        if holder is None and state.marks[piece] < samples:
            taken = state._replace(holders=with_item(state.holders, piece, life))
            name = f"trainer {number} takes piece {piece} from sample {state.marks[piece]}"
            return name, _set(taken, number, piece=piece, sample=state.marks[piece])
    return f"trainer {number} gets no piece", _set(state, number, met=True)


def _delivered(state: State, message: tuple[str, int, int, int, int], rules: frozenset[str]) -> tuple[str, State]:
    what, number, life, piece, sample = message
    name = f"the {what} {(piece, sample)} of trainer {number} arrives"
    arrived = state._replace(network=state.network - {message})
    if (number, life) in state.closed:
        return f"{name}, and is refused", arrived
    if what == "step":
        counts = with_item(state.counts[piece], sample, state.counts[piece][sample] + 1)
        arrived = arrived._replace(counts=with_item(state.counts, piece, counts))
        trainer = state.trainers[number]
        if trainer.alive and trainer.life == life:
            last = sample + 1 == len(counts)
            changed = {"piece": OPEN, "sample": 0} if last else {"sample": sample + 1}
            arrived = _set(arrived, number, sent=False, **changed)
        if "marks come with steps" not in rules:
            told = ("mark", number, life, piece, sample)
            return name, arrived._replace(network=arrived.network | {told})
    if state.holders[piece] == (number, life):
        done = sample + 1 == len(state.counts[piece])
        holders = with_item(arrived.holders, piece, None) if done else arrived.holders
        arrived = arrived._replace(marks=with_item(arrived.marks, piece, sample + 1), holders=holders)
    return name, arrived


def _laps(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    """Those that died are handed back before: their loss is what the meeting waits for."""
    waited = [t for t in state.trainers[:2] if t.alive] if "who joins is waited for" not in rules else None
    there = waited if waited is not None else [t for t in state.trainers if t.alive]
    lost = any(not t.alive and t.life and (n, t.life) in state.holders for n, t in enumerate(state.trainers))
    if not there or not all(one.met for one in there) or lost:
        return
    if "laps" not in rules or all(mark == len(state.counts[0]) for mark in state.marks):
        yield "the epoch is over", state._replace(over=True)
        return
    again = tuple(one._replace(met=False) for one in state.trainers)
    yield "another lap begins", state._replace(trainers=again, holders=(None,) * len(state.holders))


def _set(state: State, number: int, **changed: object) -> State:
    return state._replace(trainers=with_item(state.trainers, number, state.trainers[number]._replace(**changed)))


def fault_of(state: State, stands_still: bool) -> str | None:
    for piece, counts in enumerate(state.counts):
        for sample, count in enumerate(counts):
            if count > 1:
                return f"sample {(piece, sample)} is trained twice"
            if state.over and not count:
                return f"sample {(piece, sample)} is left out"
    if stands_still and not state.over and any(trainer.alive for trainer in state.trainers):
        return "the epoch never ends"
    return None


def explore(first: State, rules: frozenset[str] = ALL) -> tuple[int, Fault | None]:
    """All states that can be reached from the first, each once: how many, and the nearest fault if there is one."""
    return search(first, lambda state: () if state.over else moves(state, rules), fault_of)
