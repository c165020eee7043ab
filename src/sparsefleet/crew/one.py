"""CrewOfOne: one process by itself. There is nobody to wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from sparsefleet.crew.base import Crew, CutMember, Reports

T = TypeVar("T")


class CrewOfOne(Crew):
    def first(self) -> int:
        return 0

    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Everybody is here."""

    def reduce(self, name: str, payload: Mapping[str, Any], timeout: float | None = None) -> list[Any]:
        return [payload]

    def lost(self) -> list[str]:
        return []

    def not_begun(self) -> list[int]:
        return []

    def attending(self, member: CutMember) -> AbstractContextManager[object]:
        return nullcontext()

    def at_one_moment(self, member: CutMember, hold: AbstractContextManager[object], act: Callable[[Reports], T]) -> T:
        member.pause()
        try:
            with hold:
                return act({0: member.report(None)})
        finally:
            member.resume()
