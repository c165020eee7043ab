"""The protocol of attempts, leases and cuts, checked through everything that can happen in a small job."""

from __future__ import annotations

import pytest
from attempts_model import ALL, ELASTIC, RULES, State, explore, start


@pytest.mark.parametrize("deaths", [0, 1])
def test_no_sample_is_lost_or_counted_twice_and_no_job_stands_still(deaths: int) -> None:
    states, fault = explore(start(servers=2, trainers=2, pieces=2 + (not deaths), deaths=deaths, cuts=1))
    assert fault is None, fault
    assert states > 100  # it went somewhere


@pytest.mark.slow
@pytest.mark.parametrize(("deaths", "cuts"), [(1, 1), (2, 1), (1, 2)])
def test_the_same_with_three_pieces_and_up_to_two_deaths(deaths: int, cuts: int) -> None:
    assert explore(start(servers=2, trainers=2, pieces=3, deaths=deaths, cuts=cuts))[1] is None


def elastic(pieces: int, deaths: int) -> State:
    return start(servers=1, trainers=2, pieces=pieces, deaths=deaths, cuts=1, joiners=1, leaves=1)


def test_an_elastic_job_heals_whoever_comes_and_goes_meanwhile() -> None:
    states, fault = explore(elastic(pieces=2, deaths=1))
    assert fault is None, fault
    assert states > 1000


@pytest.mark.slow
def test_the_same_of_an_elastic_job_with_more_pieces_deaths_and_servers() -> None:
    assert explore(elastic(pieces=3, deaths=2))[1] is None
    several = start(servers=2, trainers=2, pieces=2, deaths=1, cuts=1, joiners=1, leaves=1)
    assert explore(several)[1] is None


@pytest.mark.parametrize("rule", RULES)
def test_without_any_one_of_its_rules_a_fault_is_found(rule: str) -> None:
    fixed = start(servers=2, trainers=2, pieces=2, deaths=1, cuts=1)
    _, fault = explore(elastic(pieces=2, deaths=1) if rule in ELASTIC else fixed, ALL - {rule})
    assert fault is not None
    assert any("dies" in step for step in fault.way) or rule == "a step counts once", fault
