"""CommandSource: the output of a shell command that reads a file, watched: it fails loudly or not at all."""

from __future__ import annotations

import atexit
import contextlib
import gzip
import os
import select
import signal
import subprocess
import threading
import time
import weakref
import zlib

from sparsefleet.core.errors import BadRowError, DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.data.files import is_gzip, open_file, open_through
from sparsefleet.data.formats.source import ByteSource

STDERR_KEPT = 2000
"""Bytes of the end of stderr that an error shows."""
GRACE_SECONDS = 0.5
"""How long a command may take to end by itself once it is told to, or once its output turned out bad."""


END_SECONDS = 2.0
"""How long a process that ends waits for threads that read from its commands."""


HASH_SEED = "0"
"""PYTHONHASHSEED of a command where the user has fixed none: Python's own `hash` is then the same in every process."""


def hash_seed() -> str:
    """The PYTHONHASHSEED that commands run with: the user's, where it is a number."""
    given = os.environ.get("PYTHONHASHSEED", "")
    return given if given.isdecimal() else HASH_SEED


_running: set[CommandSource] = set()
_trying = weakref.WeakSet[threading.Thread]()
"""Threads that run commands beside the readers' (`wait_for_at_exit`)."""
_starting = threading.Lock()
"""Held while a command is started and noted."""
_process_ends = False


def kill_commands(*, for_good: bool = False) -> None:
    """For a process that is about to end without its readers having come to theirs: no command outlives it.

    for_good: a reader that is about to start its next one is refused.
    """
    global _process_ends
    with _starting:
        _process_ends = _process_ends or for_good
        for source in list(_running):
            source.cancel()
            source.cancel()  # the second time is not polite


def wait_for_at_exit(thread: threading.Thread) -> None:
    """This thread runs commands, too: a process that ends gives it a moment to see that they are over."""
    _trying.add(thread)


def _end_with_commands() -> None:
    """No command outlives this process. Ctrl-C may come before whoever started a reader knows it, so that nobody closes
    it; and a command is in a session of its own, and would live on, waiting for whatever it waits for.

    Threads that read from one see its end now. They may come to theirs, for a moment: whoever is in native code
    while the interpreter is taken down ends the process by an abort.
    """
    readers = {source.read_by for source in list(_running)}
    kill_commands(for_good=True)
    until = time.monotonic() + END_SECONDS
    for reader in readers.union(_trying) - {threading.current_thread()}:
        if reader.is_alive():  # one that is about to start cannot be joined
            reader.join(max(0.0, until - time.monotonic()))


atexit.register(_end_with_commands)
os.register_at_fork(after_in_child=_running.clear)  # those are the parent's


class PipedRowError(BadRowError):
    """A sample that a command printed and that does not parse."""

    def __init__(self, error: BadRowError, command: str, state: str) -> None:
        super().__init__(error.file, error.line, error.column, error.reason, error.text)
        self.command = command
        self.args = (
            f"pipe_command {command!r} printed a bad sample: output for {error}; {state}; "
            "run it by hand on the file and look at that line",
        )


class CommandSource(ByteSource):
    """Runs `command` in a shell and process group of its own, the file (unpacked if gzip) as its stdin."""

    def __init__(self, command: str, path: str, timeout: float, seed: str | None = None) -> None:
        """`seed`: PYTHONHASHSEED; None: as every command of this process has it."""
        self.command, self.path, self.timeout = command, path, timeout
        self._stderr_end = b""
        self._last_byte = b"\n"
        self._status: int | None = None
        self._reaping = threading.Lock()
        self._cancels = 0
        self.read_by = threading.current_thread()
        self._feeder: threading.Thread | None = None
        self._feed_error: str | None = None
        self._packed = is_gzip(path)
        fed = self._packed or is_uri(path)
        file = open_file(path)
        try:
            with _starting:
                if _process_ends:
                    raise DataError(f"pipe_command {command!r} on {path} is not started: this process is about to end")
                self._process = subprocess.Popen(
                    command,
                    shell=True,
                    stdin=subprocess.PIPE if fed else file.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                    env={**os.environ, "PYTHONHASHSEED": seed or hash_seed()},
                )
                _running.add(self)
        except OSError as error:
            raise DataError(f"pipe_command {command!r} on {path}: the shell cannot be started: {error}") from error
        finally:
            file.close()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdout, self._stderr = self._process.stdout.fileno(), self._process.stderr.fileno()
        for descriptor in (self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._stderr, select.POLLIN)
        if fed:
            self._feeder = threading.Thread(target=self._feed, name="pipe_command-stdin", daemon=True)
            self._feeder.start()

    def _feed(self) -> None:
        """Write the file, unpacked, into the command's stdin; a command that stops reading early is no error."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with (
                contextlib.suppress(BrokenPipeError),
                open_through(self.path, 1 << 18) as raw,
                gzip.GzipFile(fileobj=raw) if self._packed else raw as file,
            ):
                while block := file.read(1 << 18):
                    rest = memoryview(block)
                    while rest:
                        rest = rest[stdin.write(rest) :]
        except (OSError, EOFError, zlib.error, ValueError) as error:
            self._feed_error = f"the gzip file is damaged: {error}" if self._packed else f"reading it failed: {error}"
        except DataError as error:
            self._feed_error = str(error)
        finally:
            with contextlib.suppress(OSError, ValueError):
                stdin.close()

    def readinto(self, view: memoryview) -> int:
        self.read_by = threading.current_thread()
        deadline = time.monotonic() + self.timeout
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(self._milliseconds_to(deadline))}
            if self._stderr in ready:
                self._drain_stderr()
            if self._stdout in ready:
                count = os.readv(self._stdout, [view])
                if count:
                    self._last_byte = bytes(view[count - 1 : count])
                    self.offset += count
                    return count
                self._end_of_output(deadline)
                return 0
            if time.monotonic() >= deadline:
                raise self._failed(f"no output for {self.timeout:g} seconds, so it was stopped")

    @staticmethod
    def _milliseconds_to(deadline: float) -> int:
        return max(0, int((deadline - time.monotonic()) * 1000) + 1)

    def _drain_stderr(self) -> None:
        """Take what stderr holds, so that the command never blocks on it, and keep the end."""
        for _ in range(16):  # and then back to its output, however much it complains
            try:
                block = os.read(self._stderr, 1 << 16)
            except BlockingIOError:
                return
            if not block:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(self._stderr)
                return
            self._stderr_end = (self._stderr_end + block)[-STDERR_KEPT:]

    def _end_of_output(self, deadline: float) -> None:
        """Nothing more will come: was all well?"""
        if not self._wait(deadline):
            raise self._failed(
                f"it closed its output but did not end within {self.timeout:g} seconds, so it was stopped"
            )
        if self._status != 0:
            raise self._failed("it failed")
        if self._feeder is not None:
            self._feeder.join(self.timeout)
        if self._feed_error:
            raise self._failed(self._feed_error)
        if self.offset == 0:
            raise self._failed("it printed nothing; a command must print one line a sample")
        if self._last_byte != b"\n":
            raise self._failed("its output ends in the middle of a line (no line feed at the end)")

    def _wait(self, deadline: float) -> bool:
        """Wait for the command's end without forgetting its stderr. False when the deadline passes."""
        pause = 0.001
        while self._status is None:
            self._drain_stderr()
            # WNOWAIT: until we reap it, its process group's number cannot become somebody else's.
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._reap()
            elif time.monotonic() >= deadline:
                return False
            else:
                time.sleep(pause)
                pause = min(0.05, pause * 2)
        return True

    def _reap(self) -> None:
        """End whatever is left of the process group, and take the exit status."""
        with self._reaping:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._status = self._process.wait()
        _running.discard(self)
        self._drain_stderr()

    def _state(self) -> str:
        status = "it was still running and was stopped"
        if self._status is not None:
            signalled = self._status < 0
            status = f"killed by signal {-self._status}" if signalled else f"exit status {self._status}"
        shown = self._stderr_end.decode(errors="backslashreplace").strip()
        return f"{status}; " + (f"its stderr ends with: {shown}" if shown else "its stderr is empty")

    def _failed(self, what: str) -> DataError:
        self._drain_stderr()
        state = self._state()
        self.close()
        return DataError(f"pipe_command {self.command!r} on {self.path}: {what}; {state}")

    def explain(self, error: BadRowError) -> DataError:
        # A command that fails after its junk says why on stderr: give it a moment.
        with contextlib.suppress(OSError):
            self._wait(time.monotonic() + GRACE_SECONDS)
        explained = PipedRowError(error, self.command, self._state())
        self.close()
        return explained

    def cancel(self) -> None:
        """From another thread: end the command, politely the first time, so that a read waiting for it ends too."""
        with self._reaping:  # never after it was reaped: its number may be somebody else's by then
            if self._status is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL if self._cancels else signal.SIGTERM)
                self._cancels += 1

    def close(self) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(OSError):
                self._wait(time.monotonic() + GRACE_SECONDS)
            if self._status is None:
                self._reap()
        if self._feeder is not None:
            self._feeder.join(GRACE_SECONDS)  # its pipe is broken, so it ends by itself
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
