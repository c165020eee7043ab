"""DistributedStrategy: how the trainers of a job work together."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, TypeVar

from sparsefleet.core.errors import ConfigError
from sparsefleet.store.wire.coarse import ENCODINGS

Made = TypeVar("Made")

MODES = ("sync", "half_async", "async", "geo")
MODE_OF = {
    "k_steps": "geo",
    "max_merge": "async",
    "send_queue_size": "async",
    "staleness": "async",
    "dense_refresh": "async",
}
"""The only mode that heeds a setting."""
_FLEETS = {"k_steps": "k_steps", "max_merge_var_num": "max_merge", "send_queue_size": "send_queue_size"}
"""Keys of `a_sync_configs`, and what they are called here."""
NOT_GEO = (0, -1)
"""Fleet's ways to say so, as `k_steps` of `a_sync_configs`."""
LEAVING_SECONDS = 6.0
"""What a trainer may need to tell everybody that it has given a server up, and to end."""


def _names_the_nearest(made: type[Made]) -> type[Made]:
    """Have the constructor of a dataclass refuse unknown keywords as setting them as attributes does."""
    given = made.__init__

    @functools.wraps(given)
    def init(self: Any, *values: Any, **settings: Any) -> None:
        for name in settings:
            _check_known(made, name)
        given(self, *values, **settings)

    made.__init__ = init  # type: ignore[method-assign]
    return made


def _check_known(made: type[Any], name: str) -> None:
    known = [each.name for each in fields(made)]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise ConfigError(f"{made.__name__} has no setting {name}; {hint}")


@_names_the_nearest
@dataclass
class DistributedStrategy:
    """Plainly `DistributedStrategy(mode="geo")`, or as in Fleet: `strategy.a_sync = True` with `a_sync_configs`.

    A setting of another mode (`MODE_OF`) is refused where the strategy is used, unless it is what it is by default.
    """

    mode: str | None = None
    """sync, half_async, async or geo; None: as `a_sync` says."""
    a_sync: bool = True
    """Fleet's switch: False is sync; True is async, or geo where a_sync_configs has k_steps above 0."""
    a_sync_configs: dict[str, Any] = field(default_factory=dict)
    """Fleet's settings: k_steps, max_merge_var_num, send_queue_size."""
    max_merge: int = 1
    """async: steps merged into one message; see CommunicatorConfig for what each knob trades."""
    send_queue_size: int = 4
    staleness: int | None = None
    dense_refresh: int = 1
    k_steps: int = 2
    clip_norm: float | None = None
    """A step's gradients (of the sum of a batch's losses), sparse and dense together, are scaled down to this norm
    where it is exceeded. sync: those of all trainers together; half_async: of a trainer's threads, merged; async and
    geo: of each batch."""
    timeout: float = 60.0
    """Seconds without a sign of life after which a server or trainer counts as lost."""
    connect_timeout: float = 120.0
    """Seconds that trainers wait for servers to come up, and servers, once the first trainer has come, for the others:
    all processes need the same."""
    shared_memory: bool = True
    """Exchange large bodies with servers of the same host through memory; False: through the network always."""
    dense_wire: str = "float32"
    """sync, half_async, async: how dense gradients and values travel. bfloat16 halves their bytes and int8 quarters
    them, for a network between the hosts that is slow; on one host both only cost time."""
    lost_trainer: str | None = None
    """When a trainer is killed or cut off. error: the others stop and name it; drop: they go on without it. None: error
    in sync, drop otherwise. One that fails by an error of its own (a bad row, NaN) always stops the job.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        _check_known(type(self), name)
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"mode={self.mode!r} is not a mode; choose {', '.join(MODES[:-1])} or {MODES[-1]}")
        if self.lost_trainer not in (None, "error", "drop"):
            raise ConfigError(f"lost_trainer={self.lost_trainer!r}: choose error or drop")
        if self.dense_wire not in ENCODINGS:
            raise ConfigError(f"dense_wire={self.dense_wire!r}: choose {', '.join(ENCODINGS)}")
        for name in ("timeout", "connect_timeout"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and value > 0):
                raise ConfigError(f"{name}={value!r} must be above 0 seconds")
        for name in ("a_sync", "shared_memory"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("max_merge", "send_queue_size", "dense_refresh", "k_steps"):
            _check_count(name, getattr(self, name), least=1)
        if self.clip_norm is not None and not (
            isinstance(self.clip_norm, int | float) and 0 < self.clip_norm < math.inf
        ):
            raise ConfigError(f"clip_norm={self.clip_norm!r} must be a number above 0, or None for no clipping")
        if self.staleness is not None:
            _check_count("staleness", self.staleness, least=0)

    def resolved(self) -> Resolved:
        """The settings as they are used, with Fleet's names translated."""
        self._check()  # once more: they may have been set one by one
        given = self._fleet_settings()
        mode = self.mode
        if mode is None:
            mode = "sync" if not self.a_sync else "geo" if "k_steps" in given else "async"
        elif not self.a_sync and mode != "sync":
            raise ConfigError(f"mode={mode!r} and a_sync=False, which means sync, contradict each other: leave one out")
        self._check_heeded(mode)
        if mode == "geo" and self.dense_wire != "float32":
            raise ConfigError(
                f"dense_wire={self.dense_wire!r} does nothing in mode geo, which sends differences every k_steps: "
                "leave it out, or raise k_steps"
            )
        return Resolved(
            mode=mode,
            max_merge=given.get("max_merge", self.max_merge),
            send_queue_size=given.get("send_queue_size", self.send_queue_size),
            staleness=self.staleness,
            dense_refresh=self.dense_refresh,
            k_steps=given.get("k_steps", self.k_steps),
            clip_norm=self.clip_norm,
            timeout=self.timeout,
            connect_timeout=self.connect_timeout,
            shared_memory=self.shared_memory,
            dense_wire=self.dense_wire,
            lost_trainer=self.lost_trainer or ("error" if mode == "sync" else "drop"),
        )

    def _fleet_settings(self) -> dict[str, int]:
        """What `a_sync_configs` says, under the names that are used here."""
        if not isinstance(self.a_sync_configs, Mapping):
            raise ConfigError(f"a_sync_configs={self.a_sync_configs!r} must be a dict, such as {{'k_steps': 100}}")
        unknown = sorted(set(self.a_sync_configs) - set(_FLEETS))
        if unknown:
            raise ConfigError(f"a_sync_configs has {', '.join(unknown)}; known are {', '.join(_FLEETS)}")
        given = dict(self.a_sync_configs)
        if given.get("k_steps") in NOT_GEO:
            del given["k_steps"]
        for name, value in given.items():
            _check_count(f"a_sync_configs[{name!r}]", value, least=1)
            own = getattr(self, _FLEETS[name])
            if own not in (_default(_FLEETS[name]), value):
                raise ConfigError(
                    f"{_FLEETS[name]}={own} and a_sync_configs[{name!r}]={value} mean the same setting: leave one out"
                )
        return {_FLEETS[name]: value for name, value in given.items()}

    def _check_heeded(self, mode: str) -> None:
        """Whoever gives a setting that only another mode heeds expects it to do something."""
        given = [(name, name, getattr(self, name)) for name in MODE_OF]
        given = [one for one in given if one[2] != _default(one[1])]
        for key, value in self.a_sync_configs.items():
            name = _FLEETS[key]
            if (value not in NOT_GEO) if name == "k_steps" else (value != _default(name)):
                given.append((f"a_sync_configs[{key!r}]", name, value))
        for shown, name, value in given:
            if mode != MODE_OF[name]:
                write = f"write mode='geo', k_steps={value}, or " if name == "k_steps" else ""
                belongs = f"it belongs to mode {MODE_OF[name]}; {write}leave it out"
                raise ConfigError(f"{shown}={value} does nothing in mode {mode}: {belongs}")


def _default(name: str) -> Any:
    return next(each.default for each in fields(DistributedStrategy) if each.name == name)


def _check_count(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, Integral):
        raise ConfigError(f"{name}={value!r} must be a whole number, {least} or above")
    if value < least:
        raise ConfigError(f"{name}={value} must be {least} or above")


@dataclass(frozen=True)
class Resolved:
    mode: str
    max_merge: int
    send_queue_size: int
    staleness: int | None
    dense_refresh: int
    k_steps: int
    clip_norm: float | None
    timeout: float
    connect_timeout: float
    shared_memory: bool
    dense_wire: str
    lost_trainer: str

    @property
    def answer_seconds(self) -> float:
        """How long a trainer waits for a server: so much less than the time-out that it has said so and ended by then.

        It is also less than what servers give a trainer: one that waits for a dead server is not taken for dead itself.
        """
        return round(self.timeout - min(LEAVING_SECONDS, self.timeout / 3), 1) or self.timeout
