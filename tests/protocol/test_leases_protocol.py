"""The handing out of data, checked through everything that can happen in a small job."""

from __future__ import annotations

import pytest
from leases_model import ALL, RULES, explore, start


@pytest.mark.parametrize(("joiners", "deaths"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_every_sample_is_trained_once_and_every_epoch_ends(joiners: int, deaths: int) -> None:
    states, fault = explore(start(trainers=2, joiners=joiners, pieces=2, samples=2, deaths=deaths))
    assert fault is None, fault
    assert states > 50  # it went somewhere


@pytest.mark.slow
@pytest.mark.parametrize(("joiners", "deaths"), [(1, 1), (0, 2), (1, 2)])
def test_the_same_with_three_pieces_and_up_to_two_deaths(joiners: int, deaths: int) -> None:
    assert explore(start(trainers=2, joiners=joiners, pieces=3, samples=2, deaths=deaths))[1] is None


@pytest.mark.parametrize("rule", RULES)
def test_without_any_one_of_its_rules_a_fault_is_found(rule: str) -> None:
    _, fault = explore(start(trainers=2, joiners=1, pieces=2, samples=2, deaths=1), ALL - {rule})
    assert fault is not None, rule
