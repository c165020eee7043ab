"""A Ray cluster: reach it, and get room on it for the roles of a job."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role
from sparsefleet.launch.on_ray.actor import Place, RoleActor
from sparsefleet.launch.on_ray.needs import RayNeeds, in_words

try:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ConfigError(
        f"Ray cannot be imported ({error}): install the extra, pip install 'sparsefleet[ray]', here and on all nodes"
    ) from None

CONNECT_SECONDS = 5.0
TELL_EVERY = 10.0
FIRST_TOLD = 10.0
"""Seconds; until then Ray may just be starting processes."""
LOOK_SECONDS = 0.2
_SETTINGS = b"\4"
"""The kind of frame that both sides of HTTP/2 begin with; it stands behind the frame's length, three bytes."""
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0" + b"\0\0\0\0"
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What `ray job submit` tells the driver."""


def shipped_already() -> bool:
    """Whether `ray job submit --working-dir` has shipped the driver's folder to all nodes."""
    try:
        config = json.loads(os.environ.get(_JOB_CONFIG) or "{}")
        return bool((config.get("runtime_env") or {}).get("working_dir"))
    except (ValueError, AttributeError):
        return False


@contextlib.contextmanager
def connected(ship: str | None) -> Any:
    """RAY_ADDRESS's cluster, or the one that runs on this machine; never a new one."""
    if ray.is_initialized():
        raise ConfigError("this process is connected to Ray already: start the job from a process of its own")
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS={address!r} is a Ray Client address, by which a driver cannot reach the servers; run the "
            f"command on a node (RAY_ADDRESS=host:6379), or by ray job submit"
        )
    _check_answers(address)
    runtime_env = {"working_dir": ship} if ship is not None else None
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", runtime_env=runtime_env)
    except ConnectionError as error:
        raise _no_cluster(address, error) from None
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"Ray at {address!r} refuses the job: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself tries for many minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        raise _no_cluster(address, error) from None
    if found is None:
        raise ConfigError(f"RAY_ADDRESS={address!r} would start a cluster of its own; set it to a head's host:port")
    host, _, port = found.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            may_be_head = _speaks_grpc(connection)
    except OSError as error:
        more = ""
        if found != address and address != "auto":
            more = (
                f"; Ray takes the loopback address of RAY_ADDRESS={address!r} for this host's own, so start its head "
                f"with that (--node-ip-address)"
            )
        raise _no_cluster(found, f"{error.strerror or error}{more}") from None
    if not may_be_head:
        raise _no_cluster(
            found, "something else listens there; a head's own port is 6379 unless it was started with another --port"
        )


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether whoever listens answers as a head does: dashboards (8265) and others are waited for by Ray for minutes.

    A head that is too busy to answer at once is left to Ray; so is one that speaks TLS.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("", "0", "false"):
        return True
    try:
        connection.sendall(_HTTP2_HELLO)
        answer = b""
        while len(answer) < 4 and (more := connection.recv(4 - len(answer))):
            answer += more
    except TimeoutError:
        return True
    return answer[3:4] == _SETTINGS


def _no_cluster(address: str, why: object) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at {address!r} ({str(why).splitlines()[0]}): start one (ray start --head), or set "
        f"RAY_ADDRESS to its head's host:port"
    )


def _most_on_one_node() -> str:
    """What the freest of several nodes has: a role needs all of its room on one."""
    try:
        from ray._private.state import available_resources_per_node
    except ImportError:  # Ray may move its private names, and the job does without
        return ""
    free = available_resources_per_node().values()
    if len(free) < 2:
        return ""
    most = max(free, key=lambda node: (node.get("CPU", 0.0), node.get("memory", 0.0)))
    return f" ({in_words(most)} on the node with most CPU free)"


Seat = tuple[str, int]
"""A role of the job by its kind and its number, whoever has it: ("worker", 0)."""


def seat_of(role: Role) -> Seat:
    return role.kind, role.index


@dataclass
class Room:
    """Actors that have their places: a server each in a group that is spread over the nodes, and trainers."""

    job: str
    needs: RayNeeds
    servers: int
    workers: int
    grace: float
    say: Callable[[str], None]
    given_up: Callable[[], bool]
    """Whether somebody has asked the launcher to end."""
    heals: bool = False
    group: Any = None
    actors: dict[Seat, Any] = field(default_factory=dict)
    _made: dict[Seat, int] = field(default_factory=dict)
    """How many actors each role has had."""

    def take(self) -> dict[Seat, Place] | None:
        """Wait for as long as it takes, and say for what; None: given up."""
        since, tell_at = time.monotonic(), time.monotonic() + FIRST_TOLD
        self.group = placement_group([self.needs.of("server")] * self.servers, strategy="SPREAD", name=self.job)
        grouped = self.group.ready()
        places = {("worker", index): self._place(("worker", index)) for index in range(self.workers)}
        have_servers = False
        while True:
            if not have_servers and ray.wait([grouped], timeout=0)[0]:
                have_servers = True
                places = {
                    **{("server", index): self._place(("server", index)) for index in range(self.servers)},
                    **places,
                }
            ready, waiting = ray.wait(list(places.values()), num_returns=len(places), timeout=LOOK_SECONDS)
            self._check(ready)
            if have_servers and not waiting:
                return {seat: ray.get(place) for seat, place in places.items()}
            if self.given_up():
                return None
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + TELL_EVERY
                without = len(waiting) if not have_servers else min(len(waiting), self.workers)
                self.say(self.waits_for(time.monotonic() - since, 0 if have_servers else self.servers, without))

    def place(self, role: Role) -> Any:
        """An actor for a worker more, or another one for a role whose own is lost, wherever there is room: its place,
        to be waited for.

        Ray itself places the group's part anew that was on a lost node.
        """
        self.give_back(seat_of(role))
        return self._place(seat_of(role), role.current_endpoint)

    def give_back(self, seat: Seat) -> None:
        """The room of a role that has ended, or that is not wanted any more."""
        if (actor := self.actors.pop(seat, None)) is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)

    def _place(self, seat: Seat, wanted: str | None = None) -> Any:
        """wanted: of a server that starts again, the address that the others know it by."""
        self.actors[seat] = self._actor(*seat)
        return self.actors[seat].place.remote(seat[0] == "server", wanted)

    def _actor(self, kind: str, index: int) -> Any:
        resources = self.needs.of(kind)
        where: Any = "SPREAD"
        if kind == "server":
            where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)
        start = self._made[kind, index] = self._made.get((kind, index), 0) + 1
        options: Mapping[str, Any] = {
            # The name of one that is lost may not be free yet.
            "name": f"{kind} {index} of {self.job}" + (f", start {start}" if start > 1 else ""),
            "num_cpus": resources["CPU"],
            "memory": resources["memory"],
            "scheduling_strategy": where,
            # Reports are waited for while signals are to come through.
            "max_concurrency": 4,
            # What a role has done is lost with it; a new life of a job begins from a checkpoint.
            "max_restarts": 0,
            # Reports are asked for all the time: the dashboard would count them as the job's tasks, thousands an hour.
            "enable_task_events": False,
        }
        own_id = f"{self.job}-{kind}{index}.{start}."
        # Who is lost is to be gone: a trainer that is asked to end would have the others end, and save.
        guard_grace = 0.0 if self.heals else self.grace
        return ray.remote(RoleActor).options(**options).remote(own_id, self.grace, guard_grace)

    def _check(self, ready: list[Any]) -> None:
        """Refuse actors that could not be made: once, not for each of them."""
        for place in ready:
            try:
                ray.get(place)
            except ray.exceptions.RuntimeEnvSetupError as error:
                raise ConfigError(f"Ray cannot prepare a node for the roles: {error}") from None
            except ray.exceptions.RayError as error:
                why = next((line for line in reversed(str(error).splitlines()) if line.strip()), str(error)).strip()
                raise ConfigError(
                    f"a role's actor could not be made: {why}; every node needs the same sparsefleet and Python as here"
                ) from None

    def waits_for(self, seconds: float, servers: int, workers: int) -> str:
        """In words. servers, workers: how many are without room."""
        total, free = ray.cluster_resources(), ray.available_resources()
        asked = []
        for kind, count in (("server", servers), ("worker", workers)):
            if count:
                many = f"{count} {kind}s of {{}} each" if count > 1 else f"{count} {kind} of {{}}"
                asked.append(many.format(in_words(self.needs.of(kind))))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        never = self.needs.why_never({"server": self.servers, "worker": self.workers}, nodes)
        then = f"; {never}" if never else ""
        return (
            f"has waited {seconds:.0f} s for room on the cluster: still without are {' and '.join(asked)}; of its "
            f"{in_words(total)}, free are {in_words(free)}{_most_on_one_node()}{then} (Ctrl-C gives up)"
        )

    def leave(self) -> None:
        for seat in list(self.actors):
            self.give_back(seat)
        if self.group is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(self.group)
