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
    strategy.a_sync_configs = {"k_steps": 100, "max_merge_var_num": 3}
    assert (strategy.resolved().mode, strategy.resolved().k_steps, strategy.resolved().max_merge) == ("geo", 100, 3)
    for none in (0, -1):
        strategy.a_sync_configs = {"k_steps": none}
        assert (strategy.resolved().mode, strategy.resolved().k_steps) == ("async", 2)
    strategy.a_sync = False
    assert (strategy.resolved().mode, strategy.resolved().lost_trainer) == ("sync", "error")
