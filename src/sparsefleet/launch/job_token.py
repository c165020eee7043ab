"""The secret of a job that this launcher makes: nobody else on this machine may talk to its servers.

Loopback is open to every user of a machine. So where a whole job runs here, on loopback, and its user has set no
secret, the launcher makes one, hands it to the roles in their environment, and writes it to one file per server, which
only its user can read. `sparsefleet status` finds it there by the server's address.

A file outlives its job only if launcher and guard are both killed. It is harmless then: no server knows its secret any
more, and the next job on that address writes the file anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role, parse_endpoint
from sparsefleet.launch import reaper
from sparsefleet.store.wire.auth import TOKEN_VARIABLE, check_token, insecure_allowed, is_loopback

MAX_BYTES = 4096
_LOCALHOST = ("127.0.0.1", "[::1]")


def wanted(roles: Sequence[Role], environment: Mapping[str, str]) -> bool:
    """Whether to make a secret: the whole job is here, on loopback, and its user has decided nothing."""
    job = roles[0]
    if environment.get(TOKEN_VARIABLE) or insecure_allowed(environment):
        return False
    all_here = len(roles) == job.server_num + job.worker_num  # launchers elsewhere would not know it
    return all_here and all(is_loopback(parse_endpoint("servers", one)[0]) for one in job.server_endpoints)


def make() -> str:
    return secrets.token_urlsafe(32)


class TokenFiles:
    """The files of one job, from `keep` to `remove`."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.paths: list[Path] = []

    def keep(self, endpoints: Sequence[str], token: str) -> None:
        """Write them, in the first folder that only this user can look into. OSError: there is none."""
        folder = _own_folder()
        for endpoint in endpoints:
            text = json.dumps({"server": endpoint, "token": token, "job": self._job})
            number, draft = tempfile.mkstemp(dir=folder, prefix=".")  # has mode 0600
            try:
                with os.fdopen(number, "w") as file:
                    file.write(text)
                os.replace(draft, path := folder / _name(endpoint))  # whole, and nobody has the old one open
            except OSError:
                os.unlink(draft)
                raise
            self.paths.append(path)

    def remove(self) -> None:
        reaper.remove_files(self._job, map(str, self.paths))


def find(endpoint: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The secret of the job that was launched here with that server, if there is one."""
    host, colon, port = endpoint.rpartition(":")
    names = [endpoint, *(f"{address}{colon}{port}" for address in _LOCALHOST if host == "localhost")]
    for folder in _folders(os.environ if environment is None else environment):
        for name in names:
            if (token := _read(folder / _name(name))) is not None:
                return token
    return None


def _name(endpoint: str) -> str:
    return f"{quote(endpoint, safe='')}.json"


def _folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Where the files may be. A launcher and `status` need not have the same variables set, so all are looked at."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "sparsefleet"
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sparsefleet" / "jobs"
    yield Path(tempfile.gettempdir()) / f"sparsefleet-{os.getuid()}"


def _own_folder() -> Path:
    why = OSError("there is no folder for it")
    for folder in _folders(os.environ):
        try:
            if not folder.is_absolute():
                continue
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(f"{folder} is not a folder of this user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                folder.chmod(0o700)
            with tempfile.TemporaryFile(dir=folder):  # it may be read-only
                return folder
        except OSError as error:
            why = error
    raise why


def _read(path: Path) -> str | None:
    """The secret in a file. None where there is no such file, or it is not what a launcher of this user has written."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return None
        token = json.loads(os.read(number, MAX_BYTES))["token"]
        check_token(token)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ConfigError):
        return None
    finally:
        os.close(number)
    return token if isinstance(token, str) and token else None
