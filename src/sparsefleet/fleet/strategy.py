"""DistributedStrategy: how the trainers of a job work together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.core.errors import ConfigError

MODES = ("sync", "half_async", "async", "geo")


@dataclass
class DistributedStrategy:
    """Plainly `DistributedStrategy(mode="geo")`, or as in Fleet: `strategy.a_sync = True` with `a_sync_configs`."""

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
    timeout: float = 60.0
    """Seconds without a sign of life after which a server or trainer counts as lost."""
    connect_timeout: float = 120.0
    """Seconds that trainers wait for servers to come up, and for each other to register."""
    shared_memory: bool = True
    """Exchange large bodies with servers of the same host through memory; False: through the network always."""
    lost_trainer: str | None = None
    """error: the others stop with an error that names it; drop: they go on. None: error in sync, drop otherwise."""

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"mode={self.mode!r} is not a mode; choose {', '.join(MODES[:-1])} or {MODES[-1]}")
        if self.lost_trainer not in (None, "error", "drop"):
            raise ConfigError(f"lost_trainer={self.lost_trainer!r}: choose error or drop")
        for name in ("timeout", "connect_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0 seconds")

    def resolved(self) -> Resolved:
        """The settings as they are used, with Fleet's names translated."""
        known = {"k_steps": "k_steps", "max_merge_var_num": "max_merge", "send_queue_size": "send_queue_size"}
        unknown = sorted(set(self.a_sync_configs) - set(known))
        if unknown:
            raise ConfigError(f"a_sync_configs has {', '.join(unknown)}; known are {', '.join(known)}")
        given: Mapping[str, int] = {known[name]: value for name, value in self.a_sync_configs.items()}
        mode = self.mode
        if mode is None:
            mode = "sync" if not self.a_sync else "geo" if given.get("k_steps", 0) > 0 else "async"
        return Resolved(
            mode=mode,
            max_merge=given.get("max_merge", self.max_merge),
            send_queue_size=given.get("send_queue_size", self.send_queue_size),
            staleness=self.staleness,
            dense_refresh=self.dense_refresh,
            k_steps=given["k_steps"] if given.get("k_steps", 0) > 0 else self.k_steps,
            timeout=self.timeout,
            connect_timeout=self.connect_timeout,
            shared_memory=self.shared_memory,
            lost_trainer=self.lost_trainer or ("error" if mode == "sync" else "drop"),
        )


@dataclass(frozen=True)
class Resolved:
    mode: str
    max_merge: int
    send_queue_size: int
    staleness: int | None
    dense_refresh: int
    k_steps: int
    timeout: float
    connect_timeout: float
    shared_memory: bool
    lost_trainer: str
