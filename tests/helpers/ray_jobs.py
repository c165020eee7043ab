"""Commands that run a job on a Ray cluster, and the processes of its roles."""

from __future__ import annotations

import subprocess
from pathlib import Path

from waiting import wait_until


class RayJob:
    """A command under way; its output in a file."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._output = folder, folder / "output"
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def log(self, name: str) -> str:
        path = self.folder / "log" / name
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str, log: str | None = None, seconds: float = 120.0) -> None:
        wait_until(
            lambda: text in (self.output if log is None else self.log(log)),
            seconds,
            lambda: f"{text!r} in {log or 'its output'}:\n{self.output}\n{self.log(log or 'workerlog.0')}",
        )

    def ended(self, seconds: float = 120.0) -> int:
        return self.process.wait(seconds)

    def __enter__(self) -> RayJob:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


def roles_of(folder: Path) -> list[int]:
    """Processes of roles that were given this folder's paths."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"TRAINING_ROLE=" in environment and any(str(folder).encode() in word for word in words):
                found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    """Of a role: the process of its actor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
