"""The protocol of attempts, leases and cuts, checked through everything that can happen in a small job."""

from __future__ import annotations

import pytest
from attempts_model import ALL, RULES, explore, start


@pytest.mark.parametrize("deaths", [0, 1])
def test_no_sample_is_lost_or_counted_twice_and_no_job_stands_still(deaths: int) -> None:
    states, fault = explore(start(servers=2, trainers=2, pieces=2 + (not deaths), deaths=deaths, cuts=1))
    assert fault is None, fault
    assert states > 100  # it went somewhere


@pytest.mark.slow
@pytest.mark.parametrize(("deaths", "cuts"), [(1, 1), (2, 1), (1, 2)])
def test_the_same_with_three_pieces_and_up_to_two_deaths(deaths: int, cuts: int) -> None:
    assert explore(start(servers=2, trainers=2, pieces=3, deaths=deaths, cuts=cuts))[1] is None


@pytest.mark.parametrize("rule", RULES)
def test_without_any_one_of_its_rules_a_fault_is_found(rule: str) -> None:
    _, fault = explore(start(servers=2, trainers=2, pieces=2, deaths=1, cuts=1), ALL - {rule})
    assert fault is not None
    assert any("dies" in step for step in fault.way) or rule == "a step counts once", fault
