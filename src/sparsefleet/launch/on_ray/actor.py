"""RoleActor: one role on a node of a Ray cluster. It starts the role's process there, and tells the driver of it.

The role is a process of its own, as under the launcher: a script's `__main__`, with its variables, its exit status and
its signals. Ray kills actors without asking: so a guard (`reaper.py`) ends the role, and what it has left behind, when
this process is gone, whatever has ended it: the driver's end, `ray job stop`, the node's raylet.

What the role prints goes to a file, from there to the driver's log, and to this actor's output, where Ray's dashboard
shows it.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role, parse_endpoint
from sparsefleet.launch import reaper
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.listening import listening_ports
from sparsefleet.launch.process import Exit, RoleProcess

REPORT_BYTES = 256 << 10
LOOK_SECONDS = 0.1
OLD_PORT_SECONDS = 5.0
"""How long a server that starts again waits for its old port: its former process may be about to end."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor is."""

    address: str
    """Its node's, as Ray has it."""
    node: str
    """Its node's id."""
    endpoint: str | None
    """Of a server: an address that stays free for it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is new of a role since the last one."""

    output: bytes
    exit: Exit | None
    """Set once all output has been reported."""
    listened: bool
    """A server: it has come up."""
    stopped: bool


def working_folder() -> str:
    """Where this process works, by name.

    Ray gives an actor a process that was idle, and may have taken that process's folder away and made it anew:
    `os.getcwd` then raises FileNotFoundError, though the folder of that name is there.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")


def read_text(path: str) -> str:
    """A small file's text; path: a local one or a URI."""
    if not is_uri(path):
        return Path(path).read_text()
    from sparsefleet.checkpoint import locate

    with locate(path).open_input() as file:
        return bytes(file.read()).decode()


class RoleActor:
    """Methods are called from several threads of Ray's."""

    def __init__(self, own_id: str, grace: float, guard_grace: float) -> None:
        """own_id: the mark of this role's processes. Not the job's: other roles of it may be on the same node.

        guard_grace: as `grace`, when this actor is gone.
        """
        self._id, self._grace = own_id, grace
        self._guard = Guard(own_id, guard_grace)
        self._held: HeldEndpoints | None = None
        self._process: RoleProcess | None = None
        self._former: list[RoleProcess] = []
        self._listened = False
        self._folder = working_folder()
        """Ray's copy of what was shipped, if anything was. It may be taken away and made anew under the same name."""
        self._output = Path(tempfile.mkdtemp(prefix="sparsefleet-")) / "output"
        self._asking = threading.Lock()

    def place(self, is_server: bool, wanted: str | None = None) -> Place:
        """Where this is. wanted: of a server that starts again, the address that the others know it by."""
        import ray

        address = ray.util.get_node_ip_address()
        if is_server:
            self._held = _held_again(wanted, address) or HeldEndpoints.free(1, address)
        node = ray.get_runtime_context().get_node_id()
        return Place(address, node, self._held.endpoints[0] if self._held else None)

    def sees(self, path: str, word: str) -> str | None:
        """Why this node does not see the driver's file of that one word; None: it does."""
        try:
            found = read_text(path)
        except (OSError, SparseFleetError) as error:
            return getattr(error, "strerror", None) or str(error)
        return None if found == word else "the file there is not the driver's"

    def start(
        self, role: Role, command: Sequence[str], python: str, variables: Mapping[str, str], folder: str | None
    ) -> int:
        """The role's process number. python: the driver's; this node has its own. variables: beside the node's.

        Called once more, it starts the role again, once nothing is left of the process before.
        """
        import ray

        program, *words = command
        try:
            os.chdir(folder or self._folder)
        except OSError as error:
            raise ConfigError(
                f"node {ray.util.get_node_ip_address()} has no folder {folder or self._folder}, in which roles are to "
                f"run ({error.strerror}); start the command where all nodes have that folder, or ship one (--ship)"
            ) from None
        plain = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
        cluster = ray.get_runtime_context().gcs_address
        own = {
            **plain,
            "RAY_ADDRESS": cluster,  # for scripts that read with ray.data
            **variables,
            **role.environment(),
            reaper.JOB_VARIABLE: self._id,
            "PYTHONUNBUFFERED": "1",
        }
        program = sys.executable if program == python else program
        again = self._process is not None
        if self._process is not None:
            self.end(at_once=True)
            self._former.append(self._process)
        self._listened = False
        # Ray blocks SIGINT in all processes that it starts, and their children inherit that.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            self._process = RoleProcess(role, [program, *words], own, self._output, again=again)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._guard.watch(self._process.pid)
        if not again:
            threading.Thread(target=self._show, name="role-output", daemon=True).start()
        return self._process.pid

    def report(self, known: int, seconds: float) -> Report:
        """What is new, or after so many seconds that nothing is. known: bytes of output that have arrived.

        A report that got lost on its way can so be asked for again.
        """
        process = self._process
        assert process is not None
        deadline = time.monotonic() + seconds
        with self._asking:
            while True:
                process.look()
                self._look_for_listener(process)
                over = process.exit  # before the output is read: then nothing can come after it
                with open(self._output, "rb") as file:
                    file.seek(known)
                    output = file.read(REPORT_BYTES)
                complete = over if len(output) < REPORT_BYTES else None
                if output or complete is not None or time.monotonic() >= deadline:
                    return Report(output, complete, self._listened, process.stopped)
                time.sleep(LOOK_SECONDS)

    def signal(self, number: int) -> None:
        """As `RoleProcess.interrupt`."""
        if self._process is not None:
            self._process.look()
            if number == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                number = signal.SIGTERM  # the cluster was started where it is ignored, and so does the role
            if self._process.running:
                self._process.interrupt(signal.Signals(number))

    def end(self, at_once: bool) -> list[int]:
        """End the role and what it has left behind; numbers of processes that cannot be killed."""
        if self._process is None:
            return []
        stuck = reaper.end_processes(self._id, [self._process.pid], 0.0 if at_once else self._grace)
        self._process.look()
        return stuck

    def close(self) -> None:
        """Nothing of the role is left: remove its files."""
        if self._held is not None:
            self._held.__exit__(None, None, None)
        shutil.rmtree(self._output.parent, ignore_errors=True)
        self._guard.close()
        for process in [*self._former, *([self._process] if self._process is not None else [])]:
            process.reap(timeout=1.0)

    def _look_for_listener(self, process: RoleProcess) -> None:
        if not self._listened and process.role.is_server and process.running:
            assert process.role.current_endpoint is not None
            ports = listening_ports()
            self._listened = ports is None or parse_endpoint("servers", process.role.current_endpoint)[1] in ports

    def _show(self) -> None:
        """The role's output as this actor's own, for Ray's logs."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError, ValueError), open(self._output, "rb") as file:
            while True:
                if text := file.read(REPORT_BYTES):
                    sys.stderr.write(decoder.decode(text))  # what the dashboard's page of an actor opens with
                    sys.stderr.flush()
                else:
                    time.sleep(LOOK_SECONDS)


def _held_again(wanted: str | None, address: str) -> HeldEndpoints | None:
    """The address that a server had before, where this is its node and nobody else has taken the port."""
    if wanted is None or parse_endpoint("servers", wanted)[0] != address:
        return None
    deadline = time.monotonic() + OLD_PORT_SECONDS
    while True:
        try:
            return HeldEndpoints.given([wanted])
        except ConfigError:
            if time.monotonic() >= deadline:
                return None
        time.sleep(LOOK_SECONDS)
