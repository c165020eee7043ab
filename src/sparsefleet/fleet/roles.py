"""Role: which part of a job this process plays, read from the environment.

```
PADDLE_TRAINERS_NUM=2                                        every process
PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:36011,127.0.0.1:36012   every process, the same list in the same order
TRAINING_ROLE=PSERVER  POD_IP=127.0.0.1  PADDLE_PORT=36011   a server: which one of the list it is
TRAINING_ROLE=TRAINER  PADDLE_TRAINER_ID=0                   a trainer: 0 to PADDLE_TRAINERS_NUM - 1
SPARSEFLEET_ELASTIC=1:8                                      every process, where trainers may come and go
```
In an elastic job PADDLE_TRAINERS_NUM is how many trainers it begins with; one that comes later may leave its number
out, and server 0 gives it one. With none of them set there is one process. Anything in between is an error: a job whose
processes disagree about its shape hangs or, worse, trains on the wrong data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from sparsefleet.core.elastic import VARIABLE as ELASTIC
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError

Kind = Literal["server", "worker", "single"]

TRAINERS_NUM = "PADDLE_TRAINERS_NUM"
ENDPOINTS = "PADDLE_PSERVERS_IP_PORT_LIST"
TRAINING_ROLE = "TRAINING_ROLE"
TRAINER_ID = "PADDLE_TRAINER_ID"
PORT = "PADDLE_PORT"
POD_IP = "POD_IP"
TRAINER_ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"

ROLE_VARIABLES = (TRAINERS_NUM, ENDPOINTS, TRAINING_ROLE, TRAINER_ID, PORT, POD_IP, ELASTIC)


@dataclass(frozen=True, slots=True)
class Role:
    """Checked when it is built; equal in every process of a job but for kind, index and current_endpoint."""

    SERVER: ClassVar[Kind] = "server"
    WORKER: ClassVar[Kind] = "worker"

    kind: Kind = "single"
    index: int = 0
    """Among the servers for a server, among the workers for a worker, from 0."""
    worker_num: int = 1
    server_endpoints: tuple[str, ...] = ()
    """host:port of every server, in the order that gives each its index; empty in a single process."""
    current_endpoint: str | None = None
    """A server's own address; None for the others."""
    elastic: Elastic | None = None
    """Trainers come and go: `worker_num` is how many there are at the beginning. An index of -1: server 0 gives one."""

    def __post_init__(self) -> None:
        if self.kind not in ("server", "worker", "single"):
            raise ConfigError(f"role={self.kind!r} is not a role; choose server, worker or single")
        _check_endpoints("server_endpoints", self.server_endpoints)
        if self.worker_num < 1:
            raise ConfigError(f"worker_num={self.worker_num} must be at least 1")
        if self.kind == "single":
            if (self.index, self.worker_num, self.server_endpoints, self.elastic) != (0, 1, (), None):
                raise ConfigError("a single process has index 0, one worker and no servers; choose server or worker")
            return
        if not self.server_endpoints:
            raise ConfigError(f"server_endpoints is empty: a {self.kind} belongs to a job with at least one server")
        if self.elastic is not None:
            self.elastic.check_start(self.worker_num)
        numbers = self.worker_num if self.elastic is None else self.elastic.most
        count = len(self.server_endpoints) if self.kind == "server" else numbers
        numbered_later = self.elastic is not None and self.kind == "worker" and self.index == -1
        if not 0 <= self.index < count and not numbered_later:
            raise ConfigError(f"{self.kind} index {self.index} with {count} {self.kind}s; allowed is 0 to {count - 1}")
        own = self.server_endpoints[self.index] if self.kind == "server" else None
        if self.current_endpoint != own:
            raise ConfigError(
                f"current_endpoint={self.current_endpoint!r} of {self.kind} {self.index} contradicts its place in "
                f"the list, {own!r}"
            )

    @classmethod
    def server(cls, index: int, worker_num: int, server_endpoints: Sequence[str]) -> Role:
        endpoints = tuple(server_endpoints)
        own = endpoints[index] if 0 <= index < len(endpoints) else None
        return cls("server", index, worker_num, endpoints, own)

    @classmethod
    def worker(cls, index: int, worker_num: int, server_endpoints: Sequence[str]) -> Role:
        return cls("worker", index, worker_num, tuple(server_endpoints))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Role:
        """The role that the variables give (those of this process, unless told otherwise)."""
        return _Variables(os.environ if environment is None else environment).role()

    def environment(self) -> dict[str, str]:
        """The variables that give this role: the inverse of `from_environment`."""
        if self.kind == "single":
            return {}
        common = {TRAINERS_NUM: str(self.worker_num), ENDPOINTS: ",".join(self.server_endpoints)}
        if self.elastic is not None:
            common[ELASTIC] = str(self.elastic)
        if self.kind == "worker":
            number = {TRAINER_ID: str(self.index)} if self.index >= 0 else {}
            return {**common, TRAINING_ROLE: "TRAINER", **number}
        assert self.current_endpoint is not None
        host, port = parse_endpoint("current_endpoint", self.current_endpoint)
        return {**common, TRAINING_ROLE: "PSERVER", POD_IP: host, PORT: str(port)}

    @property
    def is_server(self) -> bool:
        return self.kind == "server"

    @property
    def is_worker(self) -> bool:
        """True in a single process too: it trains."""
        return self.kind != "server"

    @property
    def is_first_worker(self) -> bool:
        return self.is_worker and self.index == 0

    @property
    def server_num(self) -> int:
        return len(self.server_endpoints)

    def __str__(self) -> str:
        return "single process" if self.kind == "single" else f"{self.kind} {self.index}"


def PaddleCloudRoleMaker() -> Role:
    """The role from the environment."""
    return Role.from_environment()


def UserDefinedRoleMaker(current_id: int, role: str, worker_num: int, server_endpoints: Sequence[str]) -> Role:
    """The role as the script gives it: `role` is Role.SERVER ("server") or Role.WORKER ("worker")."""
    kind = role.lower() if isinstance(role, str) else role
    if kind not in ("server", "worker"):
        raise ConfigError(f"role={role!r} is not a role; choose Role.SERVER or Role.WORKER")
    _check_integer("current_id", current_id)
    _check_integer("worker_num", worker_num)
    if isinstance(server_endpoints, str):
        raise ConfigError(f"server_endpoints={server_endpoints!r} must be a list, such as ['127.0.0.1:36011']")
    make = Role.server if kind == "server" else Role.worker
    return make(current_id, worker_num, [str(endpoint) for endpoint in server_endpoints])


def parse_endpoint(source: str, endpoint: str) -> tuple[str, int]:
    """host and port of "host:port" or "[ipv6]:port"; `source` names where the text came from."""
    host, colon, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or host != host.strip() or (":" in host and not bracketed):
        raise ConfigError(f"{source}: {endpoint!r} is not an address; write host:port, such as 127.0.0.1:36011")
    return host, _port(source, port, endpoint)


def join_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoints(source: str, text: str) -> tuple[str, ...]:
    """The addresses of a comma-separated list, checked."""
    endpoints = tuple(part.strip() for part in text.split(","))
    _check_endpoints(source, endpoints)
    return endpoints


class _Variables:
    """The role variables of one environment; every complaint names the variable."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # An empty value is how shells and schedulers write "not set".
        self._set = {name: environment[name] for name in ROLE_VARIABLES if environment.get(name, "").strip()}

    def role(self) -> Role:
        # POD_IP alone says nothing: Kubernetes set-ups export it to every pod.
        if not set(self._set) - {POD_IP}:
            return Role()
        kind = self._get(TRAINING_ROLE, "PSERVER or TRAINER")
        if kind not in ("PSERVER", "TRAINER"):
            raise ConfigError(f"{TRAINING_ROLE}={kind!r} is not a role; set it to PSERVER or TRAINER")
        worker_num = self._integer(TRAINERS_NUM, "the number of trainers")
        if worker_num < 1:
            raise ConfigError(f"{TRAINERS_NUM}={worker_num} must be at least 1")
        endpoints = parse_endpoints(ENDPOINTS, self._get(ENDPOINTS, "ip:port of every server, separated by commas"))
        role = self._trainer(worker_num, endpoints) if kind == "TRAINER" else self._server(worker_num, endpoints)
        return replace(role, elastic=self._elastic(), index=self._late_index(role)) if self._elastic() else role

    def _elastic(self) -> Elastic | None:
        return Elastic.parse(ELASTIC, self._set[ELASTIC]) if ELASTIC in self._set else None

    def _late_index(self, role: Role) -> int:
        """A trainer that comes later has a number beyond those at the beginning, or none yet."""
        if role.is_server:
            return role.index
        return int(self._set[TRAINER_ID]) if TRAINER_ID in self._set else -1

    def _trainer(self, worker_num: int, endpoints: tuple[str, ...]) -> Role:
        if (elastic := self._elastic()) is not None:
            if TRAINER_ID in self._set:
                index = self._integer(TRAINER_ID, f"this trainer's number, 0 to {elastic.most - 1}")
                if not 0 <= index < elastic.most:
                    raise ConfigError(
                        f"{TRAINER_ID}={index} with {ELASTIC}={elastic}; allowed is 0 to {elastic.most - 1}, or none"
                    )
            return Role.worker(0, worker_num, endpoints)
        index = self._integer(TRAINER_ID, f"this trainer's number, 0 to {worker_num - 1}")
        if not 0 <= index < worker_num:
            raise ConfigError(
                f"{TRAINER_ID}={index} with {TRAINERS_NUM}={worker_num}; allowed is 0 to {worker_num - 1}"
            )
        return Role.worker(index, worker_num, endpoints)

    def _server(self, worker_num: int, endpoints: tuple[str, ...]) -> Role:
        host = self._get(POD_IP, "this server's address as it stands in the list of servers").strip()
        text = self._get(PORT, "this server's port as it stands in the list of servers").strip()
        own = join_endpoint(host, _port(PORT, text, text))
        if own not in endpoints:
            raise ConfigError(
                f"this server is {own} by {POD_IP} and {PORT}, which is not in {ENDPOINTS}={','.join(endpoints)}; "
                f"the address must be one of the list, written in the same way"
            )
        return Role.server(endpoints.index(own), worker_num, endpoints)

    def _get(self, name: str, meaning: str) -> str:
        if name not in self._set:
            present = ", ".join(f"{other}={value!r}" for other, value in self._set.items())
            raise ConfigError(
                f"{name} is not set ({meaning}), but {present}; set it too, or unset them all to run as one process"
            )
        return self._set[name]

    def _integer(self, name: str, meaning: str) -> int:
        text = self._get(name, meaning).strip()
        if not text.isascii() or not text.removeprefix("-").isdigit():
            raise ConfigError(f"{name}={text!r} is not a whole number; it is {meaning}")
        return int(text)


def _port(source: str, text: str, shown: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigError(f"{source}: {shown!r} has no usable port; allowed is 1 to 65535")
    return int(text)


def _check_endpoints(source: str, endpoints: Sequence[str]) -> None:
    for endpoint in endpoints:
        parse_endpoint(source, endpoint)
    twice = sorted({endpoint for endpoint in endpoints if endpoints.count(endpoint) > 1})
    if twice:
        raise ConfigError(f"{source}: {', '.join(twice)} stands there more than once; each server has its own address")


def _check_integer(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be a whole number")
