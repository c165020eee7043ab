"""A search through everything that can happen to a small model of a protocol.

A model says what can happen next in a state, and what is wrong with a state. Its states are tuples: each is looked at
once, however many ways lead to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Fault(NamedTuple):
    what: str
    way: tuple[str, ...]
    """What happened, from the beginning."""


def search(
    first: S,
    moves: Callable[[S], Iterable[tuple[str, S]]],
    fault_of: Callable[[S, bool], str | None],
    most: int = 5_000_000,
    need_not: tuple[str, ...] = (),
) -> tuple[int, Fault | None]:
    """All states that can be reached from the first: how many, and the nearest fault if there is one.

    `fault_of`: of a state, and whether nothing can happen any more. `need_not`: what ends so need never happen, so who
    waits for nothing else stands still.
    """
    before: dict[S, tuple[S, str] | None] = {first: None}
    line = deque([first])
    while line:
        state = line.popleft()
        stands_still = True
        for name, after in moves(state):
            stands_still = stands_still and name.endswith(need_not)
            if after not in before:
                before[after] = (state, name)
                line.append(after)
        if what := fault_of(state, stands_still):
            return len(before), Fault(what, _way(before, state))
        if len(before) > most:
            raise AssertionError(f"more than {most:,} states: make the model smaller")
    return len(before), None


def _way(before: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    steps = []
    while (last := before[state]) is not None:
        state, name = last
        steps.append(name)
    return tuple(reversed(steps))


def with_item(items: tuple, place: int, item: object) -> tuple:
    """The same tuple with another item at one place."""
    return (*items[:place], item, *items[place + 1 :])
