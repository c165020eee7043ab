"""Schedules: their factors step by step, what they refuse, and that they survive as plain data."""

from __future__ import annotations

import json

import pytest

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError
from sparsefleet.optim.schedule import (
    Constant,
    ExponentialDecay,
    InverseTimeDecay,
    LinearWarmup,
    PolynomialDecay,
    from_dict,
)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), {1: 1.0, 10**9: 1.0}),
        (ExponentialDecay(10, 0.5), {1: 1.0, 6: 0.5**0.5, 11: 0.5, 21: 0.25}),
        (ExponentialDecay(10, 0.5, staircase=True), {1: 1.0, 10: 1.0, 11: 0.5, 20: 0.5, 21: 0.25}),
        (InverseTimeDecay(10, 1.0), {1: 1.0, 6: 1 / 1.5, 11: 0.5, 31: 0.25}),
        (InverseTimeDecay(10, 1.0, staircase=True), {10: 1.0, 11: 0.5, 20: 0.5}),
        (PolynomialDecay(10), {1: 1.0, 6: 0.5, 11: 0.0, 500: 0.0}),
        (PolynomialDecay(10, 0.2, power=2.0), {1: 1.0, 6: 0.2 + 0.8 * 0.25, 11: 0.2, 500: 0.2}),
        (LinearWarmup(4), {1: 0.25, 2: 0.5, 4: 1.0, 5: 1.0, 99: 1.0}),
        (LinearWarmup(4, ExponentialDecay(1, 0.5)), {4: 1.0, 5: 1.0, 6: 0.5, 7: 0.25}),
    ],
    ids=str,
)
def test_factors_and_plain_data(schedule, factors):
    assert {step: schedule.factor(step) for step in factors} == pytest.approx(factors)
    assert from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule


def test_a_rule_multiplies_its_rate():
    rule = optim.SGD(0.4, schedule=LinearWarmup(4))
    assert [rule.rate(step) for step in (1, 2, 3, 4, 5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ExponentialDecay(0, 0.5), "decay_steps must be 1 or above"),
        (lambda: ExponentialDecay(10, 0.0), "decay_rate must be above 0"),
        (lambda: InverseTimeDecay(10, -1.0), "decay_rate must be 0 or above"),
        (lambda: PolynomialDecay(10, 2.0), "end_factor must be 0 to 1"),
        (lambda: PolynomialDecay(10, power=0.0), "power must be above 0"),
        (lambda: LinearWarmup(0), "LinearWarmup(steps=0, after=Constant()): steps must be 1 or above"),
        (lambda: from_dict({"name": "cosine"}), "schedule 'cosine' does not exist; choose constant, exp"),
        (lambda: from_dict({"name": "exponential_decay"}), "'exponential_decay': a setting is missing"),
        (lambda: from_dict({"name": "linear_warmup", "steps": 3, "after": 5}), "schedule 5 does not exist"),
    ],
)
def test_nonsense_is_refused(build, message):
    with pytest.raises(ConfigError) as error:
        build()
    assert message in str(error.value)
