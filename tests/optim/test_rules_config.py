"""Rules as settings: what they refuse, and that they survive as plain data."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference
from sparsefleet.kernels.table import NOTING
from sparsefleet.optim import schedule
from sparsefleet.table import SparseTable, TableSpec


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


def test_all_rules_are_tried_here():
    assert {rule.name for rule in RULES} == set(optim.RULES)
    assert {rule.name: type(rule) for rule in RULES} == optim.RULES


def test_every_rule_has_a_kernel_of_its_own():
    kinds = [rule.kind for rule in optim.RULES.values()]
    assert len(set(kinds)) == len(kinds)
    assert max(kinds) < NOTING


def test_the_usual_rate_of_sgd_falls_with_the_rows_of_an_update():
    assert [optim.usual_rate("sgd", rows) for rows in (1, 100, 1000, 5000)] == pytest.approx([5e-4, 5e-4, 3e-4, 6e-5])
    assert [optim.usual_rate(name, rows) for name in ("adam", "ftrl") for rows in (1, 5000)] == [1e-3] * 4
    with pytest.raises(ConfigError, match="an update is of 1 row or more; got rows=0"):
        optim.usual_rate("sgd", 0)
    assert optim.SGD().learning_rate == optim.usual_rate("sgd", 100) == 5e-4, "in Python as at the command line"
    assert optim.SGD(weight_decay=0.1, schedule=optim.schedule.Constant()).learning_rate == 5e-4
    assert optim.SGD(0.5, 0.1) == optim.SGD(learning_rate=0.5, weight_decay=0.1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_whose_state_is_elsewhere(rule):
    """As the servers of a geo job have it: values alone, under the rule's own name."""
    kept = optim.values_only(rule)
    assert (kept.name, kept.state_width(7)) == (rule.name, 0)
    assert optim.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept
    assert (kept == rule) == (rule.name == "sgd"), "a rule without state is kept as it is"
    assert kept.for_dense() == optim.values_only(rule.for_dense())
    if kept != rule:
        with pytest.raises(StoreError, match=f"gradients cannot be applied here.*apply {rule.name} and keep its state"):
            kept.rate(1)
        with pytest.raises(ConfigError, match="state is where it is used, or elsewhere"):
            optim.from_dict({**kept.to_dict(), "state": "nowhere"})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_kernel_and_twin_know_the_rule_its_width_and_its_constants(rule):
    """Both refuse a kind that they do not have, the kernel also another width of the state."""
    random, rule = np.random.default_rng(0), rule.for_dense()
    hyper = np.array(rule.hyperparameters(), np.float64)
    assert len(hyper) <= 6
    wanted = random.standard_normal(12).astype(np.float32)
    moved = []
    for kernels in (native, reference):
        values = wanted.copy()
        state = np.full(rule.state_width(12), rule.initial_state(), np.float32)
        for step in (1, 2, 3):
            grads = random.standard_normal(12).astype(np.float32)
            kernels.apply_rule(rule.kind, rule.rate(step), hyper, step, values, state, grads, kernels.BlockLocks())
        moved.append((values, state))
        random = np.random.default_rng(0)
        random.standard_normal(12)
    for one, other in zip(*moved, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(moved[0][0], wanted)
    wrong = np.zeros(rule.state_width(12) + 1, np.float32)
    with pytest.raises(ValueError, match="state"):
        native.apply_rule(rule.kind, 0.1, hyper, 1, wanted.copy(), wrong, wanted, native.BlockLocks())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_table_takes_the_rule_on_its_rows(rule):
    table = SparseTable(TableSpec("t", 3, rule))
    keys = np.arange(4, dtype=np.uint64)
    before = table.pull(keys).copy()
    table.push(keys, np.ones((4, 3), np.float32))
    assert np.abs(table.pull(keys) - before).max() > 0


def test_by_name_takes_settings():
    assert optim.by_name("adam", 0.5, beta1=0.7) == optim.Adam(0.5, beta1=0.7)
