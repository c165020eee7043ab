"""DistributedStrategy: settings that are misspelt or make no sense are refused, also when set one by one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any

import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet import DistributedStrategy


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("k_step", "did you mean k_steps?"),
        ("a_sync_config", "did you mean a_sync_configs?"),
        ("lost_trainers", "did you mean lost_trainer?"),
        ("dense_wires", "did you mean dense_wire?"),
        ("pipeline", "there are mode, a_sync, a_sync_configs, max_merge"),
    ],
)
def test_a_misspelt_setting_names_the_right_one(name: str, hint: str) -> None:
    strategy = DistributedStrategy()
    for give in (lambda: setattr(strategy, name, 4), lambda: DistributedStrategy("geo", **{name: 4})):
        with pytest.raises(ConfigError) as caught:
            give()
        assert str(caught.value).startswith(f"DistributedStrategy has no setting {name}; {hint}")


def test_a_class_of_ones_own_may_have_settings_more() -> None:
    @dataclasses.dataclass
    class Mine(DistributedStrategy):
        note: str = ""

    assert Mine("geo", note="as last week").note == "as last week"
    with pytest.raises(ConfigError, match=r"Mine has no setting notes; did you mean note\?"):
        Mine().notes = "none"  # type: ignore[attr-defined]


def test_the_constructor_says_what_it_takes() -> None:
    named = [each.name for each in dataclasses.fields(DistributedStrategy)]
    assert list(inspect.signature(DistributedStrategy).parameters) == named
    given = DistributedStrategy("geo", k_steps=7)
    assert given == copy.deepcopy(given) == dataclasses.replace(DistributedStrategy(mode="geo"), k_steps=7)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mode", "geoo", "mode='geoo' is not a mode; choose sync, half_async, async or geo"),
        ("lost_trainer", "wait", "lost_trainer='wait': choose error or drop"),
        ("timeout", 0, "timeout=0 must be above 0 seconds"),
        ("timeout", float("nan"), "timeout=nan must be above 0 seconds"),
        ("connect_timeout", "5", "connect_timeout='5' must be above 0 seconds"),
        ("max_merge", 0, "max_merge=0 must be 1 or above"),
        ("send_queue_size", -1, "send_queue_size=-1 must be 1 or above"),
        ("dense_refresh", 0, "dense_refresh=0 must be 1 or above"),
        ("k_steps", 2.5, r"k_steps=2\.5 must be a whole number, 1 or above"),
        ("staleness", -1, "staleness=-1 must be 0 or above"),
        ("a_sync", "False", "a_sync='False' must be True or False"),
        ("a_sync_configs", None, "a_sync_configs=None must be a dict"),
        ("a_sync_configs", {"k_step": 1}, "a_sync_configs has k_step; known are k_steps"),
        ("a_sync_configs", {"k_steps": "100"}, r"a_sync_configs\['k_steps'\]='100' must be a whole number"),
    ],
)
def test_what_is_set_afterwards_is_checked_when_used(name: str, value: Any, message: str) -> None:
    strategy = DistributedStrategy()
    setattr(strategy, name, value)
    with pytest.raises(ConfigError, match=message):
        strategy.resolved()


def test_fleets_names_are_translated() -> None:
    strategy = DistributedStrategy()
    assert strategy.resolved().mode == "async"
    strategy.a_sync_configs = {"k_steps": 100}
    assert (strategy.resolved().mode, strategy.resolved().k_steps) == ("geo", 100)
    strategy.a_sync_configs = {"k_steps": 2}
    assert (strategy.resolved().mode, strategy.resolved().k_steps) == ("geo", 2)
    strategy.a_sync_configs = {"k_steps": 0, "max_merge_var_num": 3, "send_queue_size": 9}
    assert strategy.resolved() == DistributedStrategy("async", max_merge=3, send_queue_size=9).resolved()
    for none in (0, -1):
        strategy.a_sync_configs = {"k_steps": none}
        assert (strategy.resolved().mode, strategy.resolved().k_steps) == ("async", 2)
    strategy.a_sync = False
    assert (strategy.resolved().mode, strategy.resolved().lost_trainer) == ("sync", "error")


GEO, ASYNC = "it belongs to mode geo", "it belongs to mode async; leave it out"
WRITE = "; write mode='geo', k_steps=100, or leave it out"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "async", "k_steps": 100}, f"k_steps=100 does nothing in mode async: {GEO}{WRITE}"),
        ({"k_steps": 100}, f"k_steps=100 does nothing in mode async: {GEO}{WRITE}"),
        ({"a_sync": False, "k_steps": 100}, f"k_steps=100 does nothing in mode sync: {GEO}{WRITE}"),
        ({"mode": "sync", "max_merge": 20, "staleness": 3}, f"max_merge=20 does nothing in mode sync: {ASYNC}"),
        ({"mode": "half_async", "staleness": 0}, f"staleness=0 does nothing in mode half_async: {ASYNC}"),
        ({"mode": "geo", "send_queue_size": 9}, f"send_queue_size=9 does nothing in mode geo: {ASYNC}"),
        ({"mode": "sync", "dense_refresh": 2}, f"dense_refresh=2 does nothing in mode sync: {ASYNC}"),
        (
            {"a_sync": False, "a_sync_configs": {"k_steps": 100}},
            f"a_sync_configs['k_steps']=100 does nothing in mode sync: {GEO}{WRITE}",
        ),
        ({"mode": "async", "a_sync_configs": {"k_steps": 2}}, "a_sync_configs['k_steps']=2 does nothing in mode async"),
        (
            {"a_sync_configs": {"k_steps": 100, "max_merge_var_num": 3}},
            f"a_sync_configs['max_merge_var_num']=3 does nothing in mode geo: {ASYNC}",
        ),
        ({"mode": "geo", "a_sync": False}, "mode='geo' and a_sync=False, which means sync, contradict each other"),
        (
            {"k_steps": 50, "a_sync_configs": {"k_steps": 100}},
            "k_steps=50 and a_sync_configs['k_steps']=100 mean the same setting: leave one out",
        ),
    ],
    ids=str,
)
def test_a_setting_of_another_mode_is_refused_where_it_is_used(settings: dict[str, Any], message: str) -> None:
    strategy = DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    for made in (strategy, DistributedStrategy(**settings)):
        with pytest.raises(ConfigError) as caught:
            made.resolved()
        assert message in str(caught.value)


@pytest.mark.parametrize("mode", ["sync", "half_async", "async", "geo"])
def test_what_a_setting_is_by_default_may_stand_in_any_mode(mode: str) -> None:
    plain = DistributedStrategy(mode)
    assert DistributedStrategy(mode, k_steps=2, max_merge=1, staleness=None).resolved() == plain.resolved()
    assert dataclasses.replace(plain, timeout=5.0).resolved().mode == mode
