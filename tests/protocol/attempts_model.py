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

`RULES` are what makes it right. `explore` goes through all states that can be reached, and names the first fault: a
sample counted twice, a sample lost, or a job that stands still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

RULES = {
    "old attempts are refused": "a server takes no message of another attempt than its own",
    "all servers go back": "with a new attempt every server goes back to the cut, not the lost one alone",
    "trainers go back": "with a new attempt a trainer drops the piece it holds: server 0 hands it out again",
    "a step counts once": "a message that comes again is answered, not applied",
    "a cut is one moment": "a cut is named where all servers have applied the same steps",
    "former lives are refused": "before a lost trainer's piece is handed back, no server takes its messages any more",
}
ALL = frozenset(RULES)

OPEN, DONE = -1, -2
"""What server 0 knows of a piece that no trainer holds; else the trainer's number stands there."""


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
    """How many of each may still happen."""


class Fault(NamedTuple):
    what: str
    way: tuple[str, ...]
    """What happened, from the beginning."""


def start(servers: int, trainers: int, pieces: int, deaths: int, cuts: int) -> State:
    zeros, leases = (0,) * pieces, (OPEN,) * pieces
    return State(
        1,
        tuple(Server(True, 1, zeros) for _ in range(servers)),
        leases,
        tuple(Trainer(True, 1, 0, None, frozenset()) for _ in range(trainers)),
        frozenset(),
        ((zeros,) * servers, leases),
        deaths,
        cuts,
    )


def moves(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    yield from _work(state)
    yield from _deliveries(state, rules)
    yield from _cuts(state, rules)
    yield from _deaths(state)
    yield from _healing(state, rules)


def _work(state: State) -> Iterator[tuple[str, State]]:
    first = state.servers[0]
    piece = next((piece for piece, holder in enumerate(state.leases) if holder == OPEN), None)
    if piece is None or not first.alive:
        return
    for number, trainer in enumerate(state.trainers):
        if trainer.alive and trainer.attempt == first.attempt and trainer.piece is None:
            every = range(len(state.servers))
            messages = {Message(trainer.attempt, number, trainer.life, piece, server) for server in every}
            sent = state._replace(leases=_with(state.leases, piece, number), network=state.network | messages)
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
            counts = _with(server.counts, message.piece, server.counts[message.piece] + 1)
            server = server._replace(counts=counts, applied=server.applied | {message})
            arrived = arrived._replace(servers=_with(arrived.servers, message.server, server))
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
        state = state._replace(leases=_with(state.leases, message.piece, DONE))
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
            yield f"server {number} dies", fewer._replace(servers=_with(state.servers, number, gone))
    for number, trainer in enumerate(state.trainers):
        if trainer.alive:
            yield f"trainer {number} dies", _trainer(fewer, number, alive=False)


def _healing(state: State, rules: frozenset[str]) -> Iterator[tuple[str, State]]:
    counts, leases = state.cut
    dead = [number for number, server in enumerate(state.servers) if not server.alive]
    torn = [number for number, trainer in enumerate(state.trainers) if not trainer.alive and _torn(state, trainer)]
    together = all(server.alive and server.attempt == state.attempt for server in state.servers)
    if dead or torn:
        begun = state._replace(attempt=state.attempt + 1)
        for number in dead:
            begun = _server(begun, number, leases, Server(True, begun.attempt, counts[number]))
        for number in torn:
            life = state.trainers[number].life + 1
            begun = _trainer(begun, number, alive=True, attempt=0, life=life, piece=None, answered=NOBODY)
        yield f"attempt {begun.attempt} begins from the cut", begun
    elif together:
        for number, trainer in enumerate(state.trainers):
            if not trainer.alive:
                yield f"trainer {number} is started again", _handed_back(state, number, rules)
    for number, server in enumerate(state.servers):
        if server.alive and server.attempt < state.attempt:
            kept = counts[number] if "all servers go back" in rules else server.counts
            yield f"server {number} joins", _server(state, number, leases, Server(True, state.attempt, kept))
    if together:
        for number, trainer in enumerate(state.trainers):
            if trainer.alive and trainer.attempt < state.attempt:
                joined = _trainer(state, number, attempt=state.attempt)
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
    again = _trainer(state, number, alive=True, life=life, piece=None, answered=NOBODY)
    return _trainer(again, number, attempt=state.attempt)._replace(leases=leases)


NOBODY: frozenset[int] = frozenset()


def _server(state: State, number: int, leases: tuple[int, ...], server: Server) -> State:
    """A server that is at the cut again; with server 0 the leases are."""
    servers = _with(state.servers, number, server)
    return state._replace(servers=servers, leases=leases if number == 0 else state.leases)


def _trainer(state: State, number: int, **changed: object) -> State:
    return state._replace(trainers=_with(state.trainers, number, state.trainers[number]._replace(**changed)))


def _with(items: tuple, place: int, item: object) -> tuple:
    return (*items[:place], item, *items[place + 1 :])


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
    return trainer.alive, trainer.attempt, trainer.life, piece, tuple(sorted(trainer.answered)), held, tuple(mail)


def fault_of(state: State, stands_still: bool) -> str | None:
    together = all(server.alive and server.attempt == state.attempt for server in state.servers)
    twice = [piece for server in state.servers for piece, count in enumerate(server.counts) if count > 1]
    if twice:
        return f"piece {twice[0]} counted twice"
    if together and not state.network:
        # Nothing is under way: what server 0 calls done, every server has.
        for piece, holder in enumerate(state.leases):
            if holder == DONE and any(not server.counts[piece] for server in state.servers):
                return f"piece {piece} is lost"
    if stands_still and any(holder != DONE for holder in state.leases):
        return "the job stands still"
    return None


def explore(first: State, rules: frozenset[str] = ALL, most: int = 5_000_000) -> tuple[int, Fault | None]:
    """All states that can be reached from the first, each once: how many, and the nearest fault if there is one."""
    before: dict[State, tuple[State, str] | None] = {first: None}
    line = deque([first])
    while line:
        state = line.popleft()
        stands_still = True
        over = all(holder == DONE for holder in state.leases) and not state.network
        for name, after in () if over else moves(state, rules):
            stands_still, after = False, normal(after, rules)
            if after not in before:
                before[after] = (state, name)
                line.append(after)
        if what := fault_of(state, stands_still):
            return len(before), Fault(what, _way(before, state))
        if len(before) > most:
            raise AssertionError(f"more than {most:,} states: make the model smaller")
    return len(before), None


def _way(before: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (last := before[state]) is not None:
        state, name = last
        steps.append(name)
    return tuple(reversed(steps))
