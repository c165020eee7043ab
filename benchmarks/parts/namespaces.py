"""Hosts of one machine: Linux namespaces that are to each other what hosts of a network are.

```
host "servers"  eth0 10.77.0.1 ──┐
host "trainers" eth0 10.77.0.2 ──┴── a bridge, in a namespace of its own
```
Each host has a network, processes, mounts, a name and shared memory of its own: with network namespaces alone, two
processes would still find each other's memory through /proc. The network can be made slow (`rate`, by tc's tbf).
Nothing is left behind: a namespace lives as long as its first process, which ends with the pipe that it reads from us.

Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), and the commands unshare, nsenter, ip and tc: `missing` says what is not
there.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

START_SECONDS = 20.0
END_SECONDS = 20.0
_OWN = ("--mount", "--pid", "--uts", "--ipc")
_FIRST = 'if [ -n "$1" ]; then hostname "$1"; fi; echo ready; read _'
"""A host's first process: it waits for the end of its input, and all others of the host end with it."""


def missing() -> str | None:
    """Why this machine cannot do it; None: it can."""
    absent = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if absent:
        return f"these commands are not here: {', '.join(absent)} (packages util-linux and iproute2)"
    try:
        with Network(["probe"], rate="1gbit"):
            return None
    except (OSError, RuntimeError) as error:
        return f"namespaces cannot be made here, which needs root: {error}"


class Host:
    def __init__(self, name: str, address: str, unshare: Sequence[str]) -> None:
        self.name, self.address = name, address
        self._first = subprocess.Popen(
            [*unshare, "--fork", "--kill-child", "--mount-proc", "sh", "-c", _FIRST, "sh", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout is not None
        assert self._first.stderr is not None
        if self._first.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError(self._first.stderr.read().strip() or "unshare failed without a word")
        [pid] = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        self.pid = int(pid)

    def command(self, *words: str) -> list[str]:
        """The command that runs these words on this host."""
        return ["nsenter", "-t", str(self.pid), "--net", "--mount", "--pid", "--uts", "--ipc", "--", *words]

    def run(self, *words: str) -> str:
        """To its end; what it says. RuntimeError where it fails."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], output: IO[bytes], folder: Path
    ) -> subprocess.Popen[bytes]:
        """A process of this host. It ends with the host, and is waited for through what is returned."""
        return subprocess.Popen(
            self.command(*words),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )

    def close(self) -> None:
        assert self._first.stdin is not None
        self._first.stdin.close()
        try:
            self._first.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._first.kill()
            self._first.wait(END_SECONDS)


class Network:
    """Hosts that reach each other, by address and by name, from `with` to its end."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        rate: str | None = None,
        one_network: bool = False,
        known_as: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """rate: what each host may send, as tc writes it ("1gbit"); None: as fast as it goes.

        one_network: all have the same loopback, 127.0.0.1: one host whose processes cannot share memory.
        known_as: further names of hosts, such as a cluster's DNS would give them: name to host; needs a folder for
        the file that gives them.
        """
        self._names, self._rate, self._one_network = tuple(names), rate, one_network
        self._known_as, self._folder = dict(known_as or {}), folder
        self._switch: Host | None = None
        self.hosts: dict[str, Host] = {}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> Self:
        try:
            self._switch = Host("switch", "127.0.0.1", ["unshare", "--net", *_OWN])
            self._switch.run("ip", "link", "set", "lo", "up")
            if not self._one_network:
                self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
                self._switch.run("ip", "link", "set", "bridge", "up")
            for number, name in enumerate(self._names, 1):
                self.hosts[name] = self._host(number, name)
            self._name_hosts()
        except BaseException:
            self.close()
            raise
        return self

    def _host(self, number: int, name: str) -> Host:
        assert self._switch is not None
        if self._one_network:
            within = ["nsenter", "-t", str(self._switch.pid), "--net", "--", "unshare", *_OWN]
            return Host(name, "127.0.0.1", within)
        host = Host(name, f"10.77.0.{number}", ["unshare", "--net", *_OWN])
        self.hosts[name] = host  # to be closed, whatever goes wrong
        peer = ["peer", "name", "eth0", "netns", str(host.pid)]
        port = f"port{number}"
        # Made by the switch, but by our eyes: it does not see the host's process number.
        _run("nsenter", "-t", str(self._switch.pid), "--net", "--", "ip", "link", "add", port, "type", "veth", *peer)
        self._switch.run("ip", "link", "set", port, "master", "bridge", "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        if self._rate:
            shape = ["tbf", "rate", self._rate, "burst", "256kb", "latency", "50ms"]
            host.run("tc", "qdisc", "add", "dev", "eth0", "root", *shape)
        return host

    def _name_hosts(self) -> None:
        if not self._known_as:
            return
        assert self._folder is not None
        lines = ["127.0.0.1 localhost", *(f"{self[host].address} {name}" for name, host in self._known_as.items())]
        file = self._folder / "hosts"
        file.write_text("\n".join(lines) + "\n")
        for host in self.hosts.values():
            host.run("mount", "--bind", str(file), "/etc/hosts")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for host in [*self.hosts.values(), *filter(None, [self._switch])]:
            host.close()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=START_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
