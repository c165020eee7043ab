"""The token that a launcher makes for its job: who gets in, who finds it, and what is left of it (nothing)."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsefleet.cli.app import app
from sparsefleet.core.errors import StoreError
from sparsefleet.fleet.roles import Role
from sparsefleet.launch import job_token
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

JOB = """
    import logging
    from sparsefleet import fleet, optim
    logging.basicConfig(level=logging.INFO)
    fleet.init()
    fleet.distributed_optimizer(optim.SGD(0.1), fleet.DistributedStrategy(mode="async"))
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    fleet.init_worker()
    until("told")
    fleet.stop_worker()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of the test's own: what is in it is of this test's launcher."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    for variable in ("SPARSEFLEET_TOKEN", "SPARSEFLEET_INSECURE", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "sparsefleet"


def start(launcher, count: int = 1):
    """A job whose workers have registered and stay until the test tells them; its servers' addresses."""
    process = launcher.start(f"--server_num={count}", f"--worker_num={count}", "--grace=5", launcher.script(JOB))

    def registered() -> bool:
        logs = launcher.logs()
        return all(logs.get(f"serverlog.{index}", "").count("registered:") == count for index in range(count))

    launcher.wait_until(registered)
    return process, [re.search(r"listens on (\S+)", launcher.logs()[f"serverlog.{i}"])[1] for i in range(count)]


def ask(endpoint: str, token: str | None = None) -> str:
    link = ServerLink(RemoteConfig((endpoint,), timeout=20.0, token=token), 0)
    try:
        return link.action("ping", {})["server"]
    finally:
        link.client.close()


def end(launcher, process) -> str:
    (launcher.folder / "told").touch()
    error = launcher.finish(process)
    assert process.returncode == 0, (error, launcher.logs())
    return error


def status(*words: str):
    return CliRunner().invoke(app, ["status", *words])


def test_nobody_else_gets_in_status_does_and_nothing_stays(launcher, runtime) -> None:
    process, endpoints = start(launcher, 2)
    for endpoint in endpoints:
        with pytest.raises(StoreError, match="wants a token; none came"):
            ask(endpoint)
        with pytest.raises(StoreError, match="wants a token; another came"):
            ask(endpoint, "a guess")
    done = status(",".join(endpoints), "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["trainers"]) == 2
    assert status(endpoints[0].replace("127.0.0.1", "localhost")).exit_code == 0
    files = sorted(runtime.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    token = job_token.find(endpoints[0])
    assert token
    said = end(launcher, process)
    assert list(runtime.iterdir()) == []
    logs = launcher.logs()
    assert all(token not in text and "has no token" not in text for text in [said, *logs.values()]), logs


def test_a_killed_launcher_leaves_no_file(launcher, runtime) -> None:
    process, _ = start(launcher)
    assert len(list(runtime.iterdir())) == 1
    process.send_signal(signal.SIGKILL)
    launcher.wait_until(lambda: not launcher.left())
    launcher.wait_until(lambda: not list(runtime.iterdir()))


@pytest.mark.slow
def test_the_users_own_token_is_used_as_it_is(launcher, runtime, monkeypatch) -> None:
    launcher.environment = {"SPARSEFLEET_TOKEN": "of my own"}
    process, endpoints = start(launcher)
    assert ask(endpoints[0], "of my own")
    assert not runtime.exists()
    assert status(endpoints[0]).exit_code == 1
    monkeypatch.setenv("SPARSEFLEET_TOKEN", "of my own")
    assert status(endpoints[0]).exit_code == 0
    end(launcher, process)


@pytest.mark.slow
def test_who_says_that_he_knows_gets_none(launcher, runtime) -> None:
    launcher.environment = {"SPARSEFLEET_INSECURE": "1"}
    process, endpoints = start(launcher)
    assert ask(endpoints[0])
    assert not runtime.exists()
    end(launcher, process)
    assert not any("has no token" in text for text in launcher.logs().values())


def test_where_no_file_can_be_kept_the_job_is_closed_all_the_same(launcher, tmp_path) -> None:
    temporary, no_folder = tmp_path / "temporary", tmp_path / "a file"
    temporary.mkdir()
    no_folder.touch()
    (temporary / f"sparsefleet-{os.getuid()}").symlink_to(tmp_path)  # as another user might put it there
    launcher.environment = {
        "XDG_RUNTIME_DIR": str(no_folder), "XDG_STATE_HOME": str(no_folder), "TMPDIR": str(temporary),
    }  # fmt: skip
    done = launcher.run("--server_num=1", "--worker_num=1", launcher.script("print('SPARSEFLEET_TOKEN' in os.environ)"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"token cannot be kept for sparsefleet status \(\S+ is not a folder of this user\)", done.stderr)
    assert launcher.logs() == {"serverlog.0": "True\n", "workerlog.0": "True\n"}


def roles(*servers: str, workers: int = 1) -> list[Role]:
    return [
        *(Role.server(index, workers, servers) for index in range(len(servers))),
        *(Role.worker(index, workers, servers) for index in range(workers)),
    ]


def test_a_token_is_made_for_whole_jobs_on_loopback_only() -> None:
    here = roles("127.0.0.1:1", "localhost:2", "[::1]:3")
    assert job_token.wanted(here, {})
    assert job_token.wanted(here, {"SPARSEFLEET_TOKEN": "", "SPARSEFLEET_INSECURE": "0"})
    assert not job_token.wanted(here[1:], {}), "a part of it is started elsewhere, where nobody knows the token"
    assert not job_token.wanted(roles("127.0.0.1:1", "10.0.0.1:2"), {})
    assert not job_token.wanted(here, {"SPARSEFLEET_TOKEN": "mine"})
    assert not job_token.wanted(here, {"SPARSEFLEET_INSECURE": "1"})


def kept(job: str, endpoint: str, token: str) -> job_token.TokenFiles:
    files = job_token.TokenFiles(job)
    files.keep([endpoint], token)
    return files


def test_an_old_file_is_replaced_and_a_newer_one_is_not_removed() -> None:
    old = kept("job-1", "127.0.0.1:5", "first")
    new = kept("job-2", "127.0.0.1:5", "second")
    old.remove()
    assert job_token.find("127.0.0.1:5") == "second"
    assert job_token.find("localhost:5") == "second"
    assert job_token.find("127.0.0.1:6") is None
    assert job_token.find("127.0.0.2:5") is None
    new.remove()
    new.remove()
    assert job_token.find("127.0.0.1:5") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"{", b"[]", b"3", b'"text"', b"{}", b'{"token": 3}', b'{"token": null}', b'{"token": ""}',
     b'{"token": "two\\nlines"}', b'{"token": "\xc3\xa9"}', b"[" * 4000, b" " * 5000 + b'{"token": "late"}'],
)  # fmt: skip
def test_a_corrupt_file_is_no_token(content: bytes) -> None:
    path = kept("job", "127.0.0.1:5", "fine").paths[0]
    path.write_bytes(content)
    assert job_token.find("127.0.0.1:5") is None
    assert kept("job", "127.0.0.1:5", "fine again").paths == [path]
    assert job_token.find("127.0.0.1:5") == "fine again"


def test_what_is_not_a_file_of_this_users_own_is_no_token(runtime, monkeypatch) -> None:
    path = kept("job", "127.0.0.1:5", "fine").paths[0]
    path.chmod(0o640)
    assert job_token.find("127.0.0.1:5") is None, "others could read it, so it is not ours"
    path.chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert job_token.find("127.0.0.1:5") is None
    path.rename(elsewhere := runtime / "elsewhere")
    path.symlink_to(elsewhere)
    assert job_token.find("127.0.0.1:5") is None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert job_token.find("127.0.0.1:5") is None, "and nobody waits for a writer"
    path.unlink()
    path.mkdir()
    assert job_token.find("127.0.0.1:5") is None


def test_a_folder_of_someone_else_is_not_written_to(runtime, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "theirs").mkdir()
    runtime.symlink_to(tmp_path / "theirs")
    path = kept("job", "127.0.0.1:5", "fine").paths[0]
    assert path.parent == tmp_path / "state" / "sparsefleet" / "jobs"
    assert list((tmp_path / "theirs").iterdir()) == []
    assert job_token.find("127.0.0.1:5") == "fine"


def test_an_open_folder_is_closed_before_anything_is_written(runtime) -> None:
    runtime.mkdir(mode=0o777)
    runtime.chmod(0o777)
    kept("job", "127.0.0.1:5", "fine")
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
