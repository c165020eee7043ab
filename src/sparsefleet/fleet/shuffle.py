"""Trainers send each other bytes through the servers, which all of them can reach."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.crew import RemoteCrew
from sparsefleet.store.wire.frames import EMPTY, Bytes


def exchange(crew: RemoteCrew, name: str, letters: Iterable[tuple[int, Bytes]]) -> dict[int, list[Bytes]]:
    """Send (receiver, bytes) to other trainers; returns what each of them sent here, in its order. All call it.

    Sends in a thread of its own, so that servers need hold but a part of what is on its way.
    """
    crew.barrier(name)  # else one that never comes would be waited for among letters, where nobody can tell
    me, others = crew.index, set(range(crew.size)) - {crew.index}
    failures: list[BaseException] = []
    stop = threading.Event()

    def send() -> None:
        try:
            for to, letter in letters:
                if stop.is_set():
                    return
                if to not in others:
                    raise StoreError(f"trainer {me} has a letter for {to}; there are {sorted(others)}")
                crew.send_letter(name, to, letter).wait()
            for to in sorted(others):
                crew.send_letter(name, to, EMPTY, last=True).wait()
        except BaseException as error:
            failures.append(error)

    sender = threading.Thread(target=send, name="exchange-sender", daemon=True)
    sender.start()
    received: dict[int, list[Bytes]] = {other: [] for other in sorted(others)}
    expected, number = set(others), 0
    try:
        while expected:
            if failures:
                raise failures[0]
            letter = crew.take_letter(name, number, sorted(expected))
            if letter is None:
                continue
            number += 1
            if letter.last:
                expected.discard(letter.sender)
            else:
                received[letter.sender].append(letter.body)
        crew.take_letter(name, number, [])  # the box is empty now, and can go
    except BaseException:
        stop.set()  # what is still to be sent serves nobody
        raise
    finally:
        sender.join()  # every call of it ends within the time-out, or says that servers are at work
    if failures:
        raise failures[0]
    return received
