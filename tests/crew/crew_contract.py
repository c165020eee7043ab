"""CrewContract: what every Crew must do, whichever way its members meet. Subclass it and give it a `crews` fixture."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import pytest
from small_jobs import in_threads

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.crew import Crew

LIMIT = 30.0


class Standing:
    """A member that writes down what it is asked."""

    def __init__(self, number: int, heard: list[str]) -> None:
        self.number, self.heard, self._lock = number, heard, threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self.heard.append(f"{what} {self.number}")

    def pause(self) -> None:
        self.note("pause")

    def report(self, applied: int | None) -> dict[str, Any]:
        self.note("report")
        return {"place": 10 * self.number}

    def resume(self) -> None:
        self.note("resume")

    def fail(self, error: BaseException) -> None:
        self.note("fail")


class CrewContract:
    size: int

    @pytest.fixture
    def crews(self) -> list[Crew]:
        """One crew as each of its members sees it."""
        raise NotImplementedError

    def on_all(self, crews: list[Crew], act: Any) -> list[Any]:
        results: dict[int, Any] = {}
        in_threads([lambda crew=crew: results.__setitem__(crew.index, act(crew)) for crew in crews], LIMIT)
        return [results[index] for index in range(len(crews))]

    def test_members_have_numbers(self, crews):
        assert [crew.index for crew in crews] == list(range(self.size))
        assert {crew.size for crew in crews} == {self.size}
        assert {crew.first() for crew in crews} == {0}
        assert all(crew.lost() == [] for crew in crews)

    def test_all_get_what_all_hand_in_in_the_members_order(self, crews):
        for turn in range(3):
            answers = self.on_all(crews, lambda crew, turn=turn: crew.reduce("sum", {"of": crew.index, "turn": turn}))
            assert answers == [[{"of": index, "turn": turn} for index in range(self.size)]] * self.size

    def test_nobody_passes_a_barrier_before_all_have_come(self, crews):
        came: list[int] = []

        def come(crew: Crew) -> int:
            came.append(crew.index)
            crew.barrier("gate", timeout=LIMIT)
            return len(came)

        assert self.on_all(crews, come) == [self.size] * self.size

    def test_only_the_first_acts_and_all_wait_for_it(self, crews):
        acted: list[int] = []

        def act(crew: Crew) -> list[int]:
            crew.only_first("load", lambda: acted.append(crew.index))
            return list(acted)

        assert self.on_all(crews, act) == [[0]] * self.size
        assert self.on_all(crews, act) == [[0, 0]] * self.size, "the same name a second time"

    def test_a_cut_hears_of_all_while_the_store_is_held(self, crews):
        heard: list[str] = []
        members = [Standing(index, heard) for index in range(self.size)]

        @contextmanager
        def hold():
            heard.append("held")
            yield
            heard.append("let go")

        def take_part(crew: Crew) -> Any:
            with crew.attending(members[crew.index]):
                crew.barrier("all attend", timeout=LIMIT)
                reports = None
                if crew.index == 0:
                    reports = crew.at_one_moment(
                        members[0], hold(), lambda reports: (heard.append("act"), dict(reports))[1]
                    )
                crew.barrier("done", timeout=LIMIT)
            return reports

        reports, *others = self.on_all(crews, take_part)
        assert reports == {index: {"place": 10 * index} for index in range(self.size)}
        assert others == [None] * (self.size - 1)
        before, after = heard[: heard.index("held")], heard[heard.index("let go") :]
        assert sorted(before) == [f"pause {index}" for index in range(self.size)]
        within = heard[heard.index("held") : heard.index("let go")]
        assert sorted(within) == ["act", "held", *(f"report {index}" for index in range(self.size))]
        assert {word for word in after if word.startswith("resume")} == {f"resume {i}" for i in range(self.size)}

    def test_an_error_at_the_cut_lets_all_go_on(self, crews):
        heard: list[str] = []
        members = [Standing(index, heard) for index in range(self.size)]

        def take_part(crew: Crew) -> str:
            said = ""
            with crew.attending(members[crew.index]):
                crew.barrier("all attend", timeout=LIMIT)
                if crew.index == 0:
                    with pytest.raises(SparseFleetError) as error:
                        crew.at_one_moment(members[0], _nothing(), _fails)
                    said = str(error.value)
                crew.barrier("done", timeout=LIMIT)
            return said

        assert self.on_all(crews, take_part)[0] == "no room"
        assert {word for word in heard if word.startswith("resume")} == {f"resume {i}" for i in range(self.size)}


def _fails(reports: object) -> None:
    raise SparseFleetError("no room")


@contextmanager
def _nothing():
    yield
