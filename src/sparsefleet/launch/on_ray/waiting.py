"""WaitingRoles: roles that a running job has asked room for on its Ray cluster, and that have none yet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role
from sparsefleet.launch.on_ray.actor import Place
from sparsefleet.launch.on_ray.cluster import FIRST_TOLD, TELL_EVERY, Room, Seat, seat_of

PLACE_TRIES = 3


@dataclass
class _Asked:
    role: Role
    again: bool
    """Its number was another's before."""
    place: Any
    """Ray's promise of it."""
    tries: int = 1


class WaitingRoles:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._asked: dict[Seat, _Asked] = {}
        self._since = self._tell_at = 0.0

    @property
    def seats(self) -> set[Seat]:
        """Of those that still wait."""
        return set(self._asked)

    def ask_for(self, role: Role, again: bool = False) -> None:
        if not self._asked:
            self._since = time.monotonic()
            self._tell_at = self._since + FIRST_TOLD
        self._asked[seat_of(role)] = _Asked(role, again, self._room.place(role))

    def give_up(self, seat: Seat) -> None:
        del self._asked[seat]
        self._room.give_back(seat)

    def put_off(self) -> list[tuple[Role, bool]]:
        """Give all of them up, and return them, to be asked for later."""
        asked = [(one.role, one.again) for one in self._asked.values()]
        for seat in self.seats:
            self.give_up(seat)
        return asked

    def come(self, seconds: float) -> list[tuple[Role, bool, Place]]:
        """Those that have their place since the last time; where none has, after so many seconds."""
        places = [one.place for one in self._asked.values()]
        ready = ray.wait(places, num_returns=len(places), timeout=seconds)[0] if places else []
        return [
            found for seat, one in [*self._asked.items()] if one.place in ready and (found := self._found(seat, one))
        ]

    def _found(self, seat: Seat, asked: _Asked) -> tuple[Role, bool, Place] | None:
        """None: it was lost again, with another node perhaps, and is asked for once more."""
        try:
            place: Place = ray.get(asked.place)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayActorError) and asked.tries < PLACE_TRIES:
                asked.place, asked.tries = self._room.place(asked.role), asked.tries + 1
                return None
            self.give_up(seat)
            raise ConfigError(f"{asked.role} cannot be placed: {error}") from None
        del self._asked[seat]
        return asked.role, asked.again, place

    def told(self) -> str | None:
        """For whom, and how long; now and then."""
        now = time.monotonic()
        if not self._asked or now < self._tell_at:
            return None
        self._tell_at = now + TELL_EVERY
        servers = sum(asked.role.is_server for asked in self._asked.values())
        return self._room.waits_for(now - self._since, servers, len(self._asked) - servers)
