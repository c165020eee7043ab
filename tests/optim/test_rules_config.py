"""Rules as settings: what they refuse, and that they survive as plain data."""

from __future__ import annotations

import json
import math

import pytest

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError
from sparsefleet.optim import schedule


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: optim.SGD(-1.0), "sgd: learning_rate=-1.0 must be 0 or above"),
        (lambda: optim.SGD(math.nan), "sgd: learning_rate=nan must be 0 or above"),
        (lambda: optim.Adam(math.inf), "adam: learning_rate=inf must be"),
        (lambda: optim.Adam(0.1, beta1=1.0), "adam: beta1=1.0 must be 0 or above and below 1"),
        (lambda: optim.Adam(0.1, beta2=-0.1), "adam: beta2=-0.1 must be"),
        (lambda: optim.Adam(0.1, epsilon=0.0), "adam: epsilon=0.0 must be above 0"),
        (lambda: optim.Adagrad(0.1, epsilon=-1.0), "adagrad: epsilon=-1.0 must be above 0"),
        (lambda: optim.RowwiseAdagrad(0.1, epsilon=1e-40), "rowwise_adagrad: epsilon=1e-40 must be above 0, and at"),
        (lambda: optim.Adagrad(0.1, initial_accumulator=-1.0), "adagrad: initial_accumulator=-1.0"),
        (lambda: optim.RowwiseAdagrad(0.1, weight_decay=-1.0), "rowwise_adagrad: weight_decay=-1.0"),
        (lambda: optim.FTRL(0.0), "ftrl: learning_rate=0.0 must be above 0"),
        (lambda: optim.FTRL(0.1, l1=-1.0), "ftrl: l1=-1.0 must be 0 or above"),
        (lambda: optim.by_name("adamm", 0.1), "optimizer 'adamm' does not exist; choose sgd, adagrad, "),
        (lambda: optim.by_name("adam", 0.1, momentum=0.9), "optimizer 'adam': a setting is missing, surplus"),
        (
            lambda: optim.by_name("adam", "fast"),
            "optimizer 'adam': a setting is missing, surplus or mistyped",
        ),
        (lambda: optim.from_dict({"name": "adam"}), "described by its name, learning_rate and settings"),
    ],
)
def test_nonsense_is_refused_when_the_rule_is_built(build, message):
    with pytest.raises(ConfigError) as error:
        build()
    assert message in str(error.value)


RULES = [
    optim.SGD(0.1, weight_decay=0.01),
    optim.Adagrad(0.1, epsilon=1e-7, initial_accumulator=0.1),
    optim.RowwiseAdagrad(0.2),
    optim.Adam(0.01, 0.8, 0.99, 1e-7, schedule=schedule.ExponentialDecay(100, 0.9, staircase=True)),
    optim.FTRL(0.1, l1=1.0, schedule=schedule.LinearWarmup(10, schedule.PolynomialDecay(100, 0.1))),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_survives_as_json(rule):
    assert optim.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_kinds_widths_and_hyperparameters_are_what_the_kernel_expects(rule):
    assert rule.kind == list(optim.RULES).index(rule.name)
    assert len(rule.hyperparameters()) <= 6
    assert (
        rule.state_width(10)
        == {
            "sgd": 0,
            "adagrad": 10,
            "rowwise_adagrad": 1,
            "adam": 20,
            "ftrl": 20,
        }[rule.name]
    )


def test_by_name_takes_settings():
    assert optim.by_name("adam", 0.5, beta1=0.7) == optim.Adam(0.5, beta1=0.7)
