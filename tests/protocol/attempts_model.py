"""The protocol of attempts, leases and cuts as a small model, and a search through everything that can happen to it.

A job of servers and trainers works through pieces of data. A piece is one step here: it must change every server once.

    take        a trainer takes an open piece from server 0, and sends its step to each server; messages take their time
    deliver     a server applies a message; its answer may get lost, and then the message comes again. With the last
                server's answer the piece is done at server 0
    cut         one moment of all servers is kept: what they have applied, and which pieces that makes done
    die         a process ends, with all that it held in memory. Its messages under way may still arrive
    begin       a server was lost, or a trainer whose last step only some servers have: a new attempt from the last cut
    hand back   any other lost trainer: the servers refuse what its former life sent, then its piece is done or open
    join        a server goes over to the new attempt; a trainer does once all servers have
    come, go    of an elastic job: one more trainer takes part, or one that holds no piece leaves, at any moment

An attempt begins with a meeting of its crew: nobody takes a piece before all of it have joined. Who comes late, to an
attempt that has begun, is not of it.

`RULES` are what makes it right. `explore` goes through all states that can be reached, and names the first fault: a
sample counted twice, a sample lost, or a job that stands still.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from search import Fault, search, with_item

RULES = {
    "old attempts are refused": "a server takes no message of another attempt than its own",
    "all servers go back": "with a new attempt every server goes back to the cut, not the lost one alone",
    "trainers go back": "with a new attempt a trainer drops the piece it holds: server 0 hands it out again",
    "a step counts once": "a message that comes again is answered, not applied",
    "a cut is one moment": "a cut is named where all servers have applied the same steps",
    "former lives are refused": "before a lost trainer's piece is handed back, no server takes its messages any more",
    "a crew is who is there": "an attempt waits for the trainers that there are, not for all that there may be",
    "who has left is not waited for": "one of the crew that leaves as the attempt begins is struck off",
}
ELASTIC = frozenset(("a crew is who is there", "who has left is not waited for"))
"""Rules that matter where trainers come and go."""
ALL = frozenset(RULES)

OPEN, DONE = -1, -2
"""What server 0 knows of a piece that no trainer holds; else the trainer's number stands there."""


NOBODY: frozenset[int] = frozenset()


class Server(NamedTuple):
    alive: bool
    attempt: int
    counts: tuple[int, ...]
    """By piece, how often its step was applied."""
    applied: frozenset[Message] = frozenset()
    """Messages that may come again, and that it has applied. A step is known by its message, not by its piece."""


class Trainer(NamedTuple):
    alive: bool
    attempt: int
    life: int
    piece: int | None
    answered: frozenset[int]
    """Servers that have answered the piece's step."""
    there: bool = True
    """It belongs to the job: if it is dead, it is started again. Not: one that has not come yet, or has left."""
    awaited: bool = False
    """It is of the present attempt's crew, and has not joined it."""


class Message(NamedTuple):
    attempt: int
    trainer: int
    life: int
    piece: int
    server: int


class State(NamedTuple):
    attempt: int
    servers: tuple[Server, ...]
    leases: tuple[int, ...]
    """By piece: OPEN, DONE, or who holds it. At server 0, and lost with it."""
    trainers: tuple[Trainer, ...]
    network: frozenset[Message]
    cut: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
    """By server what it had applied, and the leases of that moment."""
    deaths: int
    cuts: int
    leaves: int
    """How many of each may still happen."""


def start(
    servers: int, trainers: int, pieces: int, deaths: int, cuts: int, *, joiners: int = 0, leaves: int = 0
) -> State:
    zeros, leases = (0,) * pieces, (OPEN,) * pieces
    return State(
        1,
        tuple(Server(True, 1, zeros) for _ in range(servers)),
        leases,
        (Trainer(True, 1, 0, None, NOBODY),) * trainers + (Trainer(False, 0, 0, None, NOBODY, there=False),) * joiners,
        frozenset(),
        ((zeros,) * servers, leases),
        deaths,
        cuts,
        leaves,
    )


def moves(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    yield from _work(state)
    yield from _deliveries(state, rules)
    yield from _cuts(state, rules)
    yield from _deaths(state)
    yield from _comings_and_goings(state, rules)
    yield from _healing(state, rules)


def _work(state: State) -> Iterator[tuple[str, State]]:
    first = state.servers[0]
    piece = next((piece for piece, holder in enumerate(state.leases) if holder == OPEN), None)
    if piece is None or not first.alive or any(trainer.awaited for trainer in state.trainers):
        return
    for number, trainer in enumerate(state.trainers):
        if trainer.alive and trainer.attempt == first.attempt and trainer.piece is None:
            every = range(len(state.servers))
            messages = {Message(trainer.attempt, number, trainer.life, piece, server) for server in every}
            sent = state._replace(leases=with_item(state.leases, piece, number), network=state.network | messages)
            yield f"trainer {number} takes piece {piece} and sends its step", _trainer(sent, number, piece=piece)


def _deliveries(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    for message in sorted(state.network):
        server, trainer = state.servers[message.server], state.trainers[message.trainer]
        if not server.alive:
            continue
        arrived = state._replace(network=state.network - {message})
        what = f"server {message.server} gets piece {message.piece} of trainer {message.trainer}"
        if server.attempt != message.attempt and "old attempts are refused" in rules:
            yield f"{what}, and refuses it", arrived
            continue
        before = message in server.applied
        if not before or "a step counts once" not in rules:
            counts = with_item(server.counts, message.piece, server.counts[message.piece] + 1)
            server = server._replace(counts=counts, applied=server.applied | {message})
            arrived = arrived._replace(servers=with_item(arrived.servers, message.server, server))
        if (trainer.alive, trainer.life, trainer.attempt) == (True, message.life, message.attempt):
            yield what, _answered(arrived, message)
            if not before:  # once is enough
                yield f"{what}; the answer is lost", arrived._replace(network=state.network)
        else:
            yield f"{what}, which is gone", arrived


def _answered(state: State, message: Message) -> State:
    """With the last server's answer the piece is done."""
    number, trainer = message.trainer, state.trainers[message.trainer]
    answered = trainer.answered | {message.server}
    if len(answered) < len(state.servers):
        return _trainer(state, number, answered=answered)
    first = state.servers[0]
    if first.alive and first.attempt == trainer.attempt:
        state = state._replace(leases=with_item(state.leases, message.piece, DONE))
    return _trainer(state, number, piece=None, answered=NOBODY)


def _cuts(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    servers = state.servers
    if not state.cuts or not all(server.alive and server.attempt == state.attempt for server in servers):
        return
    counts = tuple(server.counts for server in servers)
    if "a cut is one moment" in rules and len(set(counts)) > 1:
        return
    # What the servers have applied says which pieces are done, whatever their trainers know of it.
    leases = tuple(DONE if applied else OPEN for applied in counts[0])
    yield "a cut", state._replace(cut=(counts, leases), cuts=state.cuts - 1)


def _deaths(state: State) -> Iterator[tuple[str, State]]:
    if not state.deaths:
        return
    fewer = state._replace(deaths=state.deaths - 1)
    for number, server in enumerate(state.servers):
        if server.alive:
            gone = Server(False, 0, (0,) * len(server.counts))
            yield f"server {number} dies", fewer._replace(servers=with_item(state.servers, number, gone))
    for number, trainer in enumerate(state.trainers):
        if trainer.alive:
            yield f"trainer {number} dies", _trainer(fewer, number, alive=False)


def _comings_and_goings(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    for number, trainer in enumerate(state.trainers):
        if not trainer.there and trainer.life == 0 and _together(state):
            there = {"alive": True, "there": True, "attempt": state.attempt, "life": 1, "awaited": False}
            yield f"trainer {number} comes", _trainer(state, number, **there)
        others = any(one.alive for other, one in enumerate(state.trainers) if other != number)
        if state.leaves and trainer.alive and trainer.piece is None and others:
            fewer = state._replace(leaves=state.leaves - 1)
            # Its life is told from that of one that has not come yet: it comes no more.
            yield f"trainer {number} leaves", _trainer(fewer, number, alive=False, there=False, life=trainer.life + 1)
        if trainer.awaited and not trainer.there and trainer.life and "who has left is not waited for" in rules:
            yield f"trainer {number}, which has left, is struck off", _trainer(state, number, awaited=False)


def _together(state: State) -> bool:
    return all(server.alive and server.attempt == state.attempt for server in state.servers)


def _healing(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    counts, leases = state.cut
    dead = [number for number, server in enumerate(state.servers) if not server.alive]
    lost = [number for number, trainer in enumerate(state.trainers) if trainer.there and not trainer.alive]
    torn = [number for number in lost if _torn(state, state.trainers[number])]
    together = _together(state)
    if dead or torn:
        begun = state._replace(attempt=state.attempt + 1)
        for number in dead:
            begun = _server(begun, number, leases, Server(True, begun.attempt, counts[number]))
        for number in torn:
            life = state.trainers[number].life + 1
            begun = _trainer(begun, number, alive=True, attempt=0, life=life, piece=None, answered=NOBODY)
        for number, trainer in enumerate(state.trainers):
            waits = trainer.there or "a crew is who is there" not in rules
            begun = _trainer(begun, number, awaited=waits)
        yield f"attempt {begun.attempt} begins from the cut", begun
    elif together:
        for number in lost:
            yield f"trainer {number} is started again", _handed_back(state, number, rules)
    for number, server in enumerate(state.servers):
        if server.alive and server.attempt < state.attempt:
            kept = counts[number] if "all servers go back" in rules else server.counts
            yield f"server {number} joins", _server(state, number, leases, Server(True, state.attempt, kept))
    if together:
        for number, trainer in enumerate(state.trainers):
            if trainer.alive and trainer.attempt < state.attempt:
                joined = _trainer(state, number, attempt=state.attempt, awaited=False)
                if "trainers go back" in rules:
                    joined = _trainer(joined, number, piece=None, answered=NOBODY)
                yield f"trainer {number} joins", joined


def _torn(state: State, trainer: Trainer) -> bool:
    """Whether some servers have the lost trainer's last step and others not."""
    piece = trainer.piece
    return piece is not None and len({server.counts[piece] for server in state.servers if server.alive}) > 1


def _handed_back(state: State, number: int, rules: frozenset[str]) -> State:
    trainer = state.trainers[number]
    if "former lives are refused" in rules:
        former = (number, trainer.life)
        state = state._replace(network=frozenset(m for m in state.network if (m.trainer, m.life) != former))
    leases = tuple(
        (DONE if state.servers[0].counts[piece] else OPEN) if holder == number else holder
        for piece, holder in enumerate(state.leases)
    )
    life = trainer.life + 1
    again = _trainer(state, number, alive=True, life=life, piece=None, answered=NOBODY, awaited=False)
    return _trainer(again, number, attempt=state.attempt)._replace(leases=leases)


def _server(state: State, number: int, leases: tuple[int, ...], server: Server) -> State:
    """A server that is at the cut again; with server 0 the leases are."""
    servers = with_item(state.servers, number, server)
    return state._replace(servers=servers, leases=leases if number == 0 else state.leases)


def _trainer(state: State, number: int, **changed: object) -> State:
    return state._replace(trainers=with_item(state.trainers, number, state.trainers[number]._replace(**changed)))


def normal(state: State, rules: frozenset[str]) -> State:
    """The one of several states that differ in nothing that matters: trainers are alike, and what is sure to be refused
    need not be delivered."""
    network = state.network
    if network and "old attempts are refused" in rules:
        network = frozenset(m for m in network if m.attempt >= state.servers[m.server].attempt)
    order = sorted(range(len(state.trainers)), key=lambda number: _sorted_by(state, number))
    place = {number: index for index, number in enumerate(order)}

    def renamed(messages: frozenset[Message]) -> frozenset[Message]:
        return frozenset(m._replace(trainer=place[m.trainer]) for m in messages)

    return state._replace(
        servers=tuple(s._replace(applied=renamed(s.applied & network)) for s in state.servers),
        trainers=tuple(state.trainers[number] for number in order),
        leases=tuple(place.get(holder, holder) for holder in state.leases),
        network=renamed(network),
    )


def _sorted_by(state: State, number: int) -> tuple[object, ...]:
    trainer = state.trainers[number]
    held = tuple(piece for piece, holder in enumerate(state.leases) if holder == number)
    mail = sorted(
        (m._replace(trainer=0), m in state.servers[m.server].applied) for m in state.network if m.trainer == number
    )
    piece = -1 if trainer.piece is None else trainer.piece
    own = trainer.alive, trainer.attempt, trainer.life, piece, trainer.there, trainer.awaited
    return *own, tuple(sorted(trainer.answered)), held, tuple(mail)


def fault_of(state: State, stands_still: bool) -> str | None:
    twice = [piece for server in state.servers for piece, count in enumerate(server.counts) if count > 1]
    if twice:
        return f"piece {twice[0]} counted twice"
    if _together(state) and not state.network:
        # Nothing is under way: what server 0 calls done, every server has.
        for piece, holder in enumerate(state.leases):
            if holder == DONE and any(not server.counts[piece] for server in state.servers):
                return f"piece {piece} is lost"
    if stands_still and any(holder != DONE for holder in state.leases):
        return "the job stands still"
    return None


def explore(first: State, rules: frozenset[str] = ALL) -> tuple[int, Fault | None]:
    """All states that can be reached from the first, each once: how many, and the nearest fault if there is one."""

    def following(state: State) -> Iterator[tuple[str, State]]:
        over = all(holder == DONE for holder in state.leases) and not state.network
        for name, after in () if over else moves(state, rules):
            yield name, normal(after, rules)

    return search(first, following, fault_of, need_not=("comes",))
