"""`sparsefleet train` with many processes: launched by itself, or by hand with the roles' variables."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import SMALL, CommandLine
from typer.testing import CliRunner

from sparsefleet import launch
from sparsefleet.checkpoint import Checkpoint, diff, latest
from sparsefleet.cli.app import app
from sparsefleet.cli.train import tell_end
from sparsefleet.cli.train_roles import handed_on
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.command import main
from sparsefleet.launch.logs import only_ours
from sparsefleet.metrics import ClickMetrics
from sparsefleet.store.base import RunFacts
from sparsefleet.store.local import LocalStore


def train(small_clicks: Path, *more: object) -> tuple[object, ...]:
    return ("train", "--data", small_clicks / "train", "--test-data", small_clicks / "test", *SMALL, *more)


@pytest.mark.parametrize(
    ("trainers", "said"), [(1, "1 trainer: 2,000 rows, 500 rows/s"), (2, "2 trainers together: 2,000 rows, 500 rows/s")]
)
def test_the_end_of_a_job_is_told_however_many_trainers_it_has(
    trainers: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each trainer's own end stands in its log."""
    tell_end({"trainers": trainers, "rows": 2000, "samples_per_s": 500.0}, "data", job=True)
    assert said in capsys.readouterr().err


def test_one_process_has_told_its_rows_epoch_by_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    tell_end({"trainers": 1, "rows": 2000, "samples_per_s": 500.0}, "data", job=False)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_geo_with_two_servers_and_two_trainers_and_no_script(shell: CommandLine, small_clicks: Path) -> None:
    job = ("--servers", 2, "--workers", 2, "--mode", "geo", "--k-steps", 5, "--save", "model", "--json")
    done = shell.run(*train(small_clicks, *job))
    assert done.returncode == 0, done.stderr
    assert shell.left() == []
    result = json.loads(done.stdout)
    assert (result["rows"], result["test_rows"], result["trainers"]) == (2000, 700, 2)
    assert result["samples_per_s"] > 0
    assert 0 < result["test_auc"] < 1
    logs = shell.folder / "log"
    assert sorted(path.name for path in logs.iterdir()) == ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"]
    assert json.loads((logs / "workerlog.0").read_text().splitlines()[-1]) == result
    assert f"test AUC {result['test_auc']:.4f}   best possible 0.8" in done.stderr
    assert "2 trainers together: 2,000 rows" in done.stderr
    checkpoint = Checkpoint.open(latest(shell.folder / "model"))
    assert str(checkpoint.location) == result["model"]
    (table,) = checkpoint.manifest.tables
    assert (table.rule["name"], table.rule["state"], table.state_width) == ("adam", "elsewhere", 0)
    assert (shell.folder / "model" / "metrics.jsonl").exists()

    again = shell.result("infer", "model", "--data", small_clicks / "test")
    assert again["auc"] == result["test_auc"], "what the trainers scored on the servers is what was saved"
    assert again["logloss"] == pytest.approx(result["test_logloss"], rel=1e-12)

    on = shell.run(*train(small_clicks, *job, "--resume", "model", "--epochs", 2))
    assert on.returncode == 0, on.stderr
    assert "adam begins without state: in mode geo every trainer keeps its own" in " ".join(on.stderr.split())
    assert json.loads(on.stdout)["rows"] == 2000
    assert json.loads(on.stdout)["steps"] > result["steps"]
    alone = shell.run(*train(small_clicks, "--resume", "model", "--epochs", 3))
    assert alone.returncode == 1
    assert "is of a job in mode geo, whose trainers keep adam's state themselves" in " ".join(alone.stderr.split())


@pytest.mark.slow
def test_the_first_worker_tells_where_its_time_went(shell: CommandLine, small_clicks: Path) -> None:
    job = ("--servers", 1, "--workers", 2, "--mode", "sync", "--profile", "--json")
    done = shell.run(*train(small_clicks, *job))
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)["profile"]
    assert profile["steps"] in (10, 11), "half of the pieces, which are not all of the same number of rows"
    assert profile["threads"] == 1
    assert profile["parts"]["waiting"]["ms"] > 0, "in sync a trainer waits for the other's part of each round"
    assert re.search(r"^waiting +\d", done.stderr, re.MULTILINE)


@pytest.mark.slow
def test_a_run_is_resumed_on_other_servers_and_in_one_process(shell: CommandLine, small_clicks: Path) -> None:
    alone = ("--threads", 1, "--learning-rate", 0.01)
    first = shell.result(*train(small_clicks, *alone, "--save", "model"))
    job = ("--servers", 2, "--workers", 2, "--mode", "sync", "--learning-rate", 0.01)
    second = shell.result(*train(small_clicks, *job, "--save", "more", "--resume", "model", "--epochs", 2))
    assert (first["rows"], second["rows"]) == (2000, 2000), "only the epoch that was missing"
    assert first["steps"] == 20
    assert second["steps"] in (30, 31), "a trainer makes half the steps"
    assert second["test_auc"] > first["test_auc"]
    training = Checkpoint.open(latest(shell.folder / "more")).manifest.extra["training"]
    assert training["epoch"] == 2
    assert ClickMetrics.from_dict(training["metrics"]).rows == 4000, "of all trainers, and of the first run"
    third = shell.result(*train(small_clicks, *alone, "--resume", "more", "--epochs", 2))
    assert third["rows"] == 0
    assert third["test_auc"] == second["test_auc"]
    assert shell.left() == []


def test_four_processes_by_hand(shell: CommandLine, small_clicks: Path) -> None:
    with HeldEndpoints.free(2) as held:
        roles = [Role.server(0, 2, held.endpoints), Role.server(1, 2, held.endpoints)]
        roles += [Role.worker(0, 2, held.endpoints), Role.worker(1, 2, held.endpoints)]
        started = [
            shell.start(*train(small_clicks, "--mode", "sync", "--json"), environment=role.environment())
            for role in roles
        ]
        ended = [shell.finish(process) for process in started]
    assert [done.returncode for done in ended] == [0] * 4, "\n".join(done.stderr for done in ended)
    assert "all trainers have stopped" in ended[0].stderr
    results = [json.loads(done.stdout) for done in ended[2:]]
    assert results[0] == results[1], "every trainer knows the whole job's result"
    assert results[0]["rows"] == 2000


def test_a_trainer_that_comes_late_is_waited_for(shell: CommandLine, small_clicks: Path) -> None:
    """Later than `--timeout`: that is for those who were there."""
    options = ("--mode", "sync", "--timeout", 5, "--connect-timeout", 90, "--json")
    with HeldEndpoints.free(1) as held:
        server, first, late = (
            role.environment()
            for role in (
                Role.server(0, 2, held.endpoints),
                *(Role.worker(index, 2, held.endpoints) for index in (0, 1)),
            )
        )
        started = [shell.start(*train(small_clicks, *options), environment=role) for role in (server, first)]
        time.sleep(12)  # the first has imported torch by then, and waits
        started.append(shell.start(*train(small_clicks, *options), environment=late))
        ended = [shell.finish(process) for process in started]
    assert [done.returncode for done in ended] == [0] * 3, "\n".join(done.stderr for done in ended)
    result = json.loads(ended[1].stdout)
    assert (result["rows"], result["trainers"], result["lost"]) == (2000, 2, [])


def test_who_does_not_come_is_waited_for_as_long_as_connect_timeout_says(
    shell: CommandLine, small_clicks: Path
) -> None:
    """Both sides know it: servers wait so long for trainers, trainers for servers."""
    with HeldEndpoints.free(2) as held:
        here, nowhere = held.endpoints
        began = time.monotonic()
        environments = [
            Role.server(0, 2, [here]).environment(),
            Role.worker(0, 2, [here]).environment(),
            Role.worker(0, 1, [nowhere]).environment(),
        ]
        options = ("--mode", "sync", "--connect-timeout", 6)
        server, alone, without = (
            shell.start(*train(small_clicks, *options), environment=environment) for environment in environments
        )
        waited = [shell.finish(process) for process in (alone, without)]
    assert time.monotonic() - began < 60, "two minutes are the default"
    server.kill()
    assert [done.returncode for done in waited] == [1, 1]
    said = [" ".join(done.stderr.split()) for done in waited]
    assert "lost worker 1 (never registered)" in said[0]
    assert "is waited for 6 s from the first one on: raise connect_timeout" in said[0]
    assert f"server 0 ({nowhere}) did not come up within 6 s" in said[1]
    assert all("--connect-timeout" in text for text in said)


@pytest.mark.parametrize("words", [("train", "--data"), ("word2vec", "train", "--save", "words", "--text")])
def test_the_launcher_hands_on_how_long_to_wait(
    words: tuple[str, ...], small_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[list[str]] = []

    def note(command: Any, *given: object, **more: object) -> launch.Outcome:
        told.append(command(None))
        return launch.Outcome(0)

    monkeypatch.setattr(launch, "run_local", note)
    done = invoke(*words, small_clicks / "train", "--servers", 1, "--workers", 2, "--connect-timeout", 300)
    assert done.exit_code == 0, done.output
    assert "--connect-timeout=300.0" in told[0]


@pytest.mark.slow
def test_a_trainer_that_fails_fails_the_job_and_its_message_is_shown(shell: CommandLine, small_clicks: Path) -> None:
    bad = shell.folder / "bad"
    bad.mkdir()
    for part in (small_clicks / "train").iterdir():
        (bad / part.name).write_bytes(part.read_bytes())
    with (bad / "part-3").open("a") as file:
        file.write("not a row\n")
    job = ("--servers", 1, "--workers", 2, "--mode", "sync", "--timeout", 3, "--save", "model")
    done = shell.run("train", "--data", bad, *SMALL, *job)
    assert done.returncode == 1
    assert "failed first: exit status 1" in done.stderr
    assert "part-3" in done.stderr
    assert "go on with" not in done.stderr, "nothing was saved"
    assert shell.left() == []


@pytest.mark.parametrize("status", [0, 1, 130])
def test_a_job_that_did_not_end_well_says_what_to_go_on_from(
    small_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ("train", "--data", small_clicks / "train", *SMALL)
    assert invoke(*rows, "--save", "M").exit_code == 0
    monkeypatch.setattr(launch, "run_local", lambda *given, **more: launch.Outcome(status))
    line = f"sparsefleet train: go on with: --resume M (checkpoint {latest(tmp_path / 'M').name})\n"
    for more, named in (
        (("--save", "M", "--resume", "M", "--epochs", 2), True),
        (("--save", "M", "--resume", "M"), False),  # it is done
        (("--save", "M", "--epochs", 2), False),  # another run's
        (("--save", "new", "--resume", "M", "--epochs", 2), False),
        ((), False),
    ):
        done = invoke(*rows, "--servers", 1, "--workers", 1, *more)
        assert done.exit_code == status
        assert (line in done.stderr) == ("go on with" in done.stderr) == (named and status != 0), more


def test_what_a_job_has_saved_itself_is_what_to_go_on_from(
    small_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ("train", "--data", small_clicks / "train", *SMALL, "--save", "M")

    def save_and_fail(*given: object, **more: object) -> launch.Outcome:
        assert invoke(*rows).exit_code == 0
        return launch.Outcome(1)

    monkeypatch.setattr(launch, "run_local", save_and_fail)
    for _ in range(2):  # the second time, a checkpoint of that name is there before
        done = invoke(*rows, "--servers", 1, "--workers", 1, "--epochs", 2)
        assert "go on with: --resume M (checkpoint step-000000" in done.stderr


@pytest.mark.slow
def test_a_trainer_that_fails_by_itself_ends_the_job_in_every_mode(shell: CommandLine, small_clicks: Path) -> None:
    """It is the servers that say so: the launcher has no opinion, whatever --lost-trainer is."""
    bad = shell.folder / "bad"
    bad.mkdir()
    rows = (small_clicks / "train" / "part-0").read_text()
    (bad / "part-0").write_text(rows * 40)
    (bad / "part-1").write_text(rows * 2 + "not a row\n" + rows * 38)
    job = ("--servers", 1, "--workers", 2, "--mode", "async", "--lost-trainer", "drop", "--batch-size", 5)
    began = time.monotonic()
    done = shell.run("train", "--data", bad, *SMALL, *job)
    assert done.returncode == 1
    assert time.monotonic() - began < 60
    # The other hears of it from the servers at once: it may have ended before the launcher looks again.
    told = r"worker \d failed \(exit status 1\); the others may go on for 70 s|failed too: worker \d"
    assert re.search(told, done.stderr), done.stderr
    assert "go on without it" not in done.stderr
    assert shell.left() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--servers", "2"], "--servers and --workers go together"),
        (["--servers", "0", "--workers", "1"], "--servers 0 must be 1 or above"),
        (["--servers", "1", "--workers", "1", "--mode", "geoo"], "choose sync, half_async, async or geo"),
        (["--servers", "1", "--workers", "2", "--max-merge", "0"], "max_merge=0 must be 1 or above"),
        (["--servers", "1", "--workers", "1", "--connect-timeout", "0"], "connect_timeout=0.0 must be above 0 seconds"),
        (["--servers", "1", "--workers", "1", "--lost-trainer", "wait"], "choose error or drop"),
        (["--servers", "1", "--workers", "1", "--k-steps", "5"], "--k-steps does nothing in mode async: it belongs to"),
        (
            ["--servers", "1", "--workers", "1", "--mode", "sync", "--max-merge", "3"],
            "--max-merge does nothing in mode sync: it belongs to --mode async; leave it out",
        ),
        (["--servers", "1", "--workers", "1", "--save", __file__], f"{__file__} is a file; give a folder, new or of"),
        (["--servers", "1", "--workers", "1", "--save", f"{__file__}/x"], f"--save {__file__}/x: {__file__} is a file"),
        (["--save", ""], "--save '' names no folder (an unset variable?); give one, or leave --save out"),
        (["--servers", "1", "--workers", "1", "--save", " "], "--save '' names no folder (an unset variable?)"),
        (["--servers", "1", "--workers", "1", "--data", "/nowhere"], "/nowhere: no such file or folder"),
        (["--servers", "1", "--workers", "5000"], "use fewer workers"),
        (["--servers", "1", "--workers", "1", "--log-dir", __file__], "cannot be used: Not a directory; give a folder"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    small_clicks: Path, options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("train", "--data", small_clicks / "train", *options)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--leases"], "--leases says how trainers share their data: give --servers and --workers too"),
        (["--no-leases"], "--no-leases says how trainers share their data: give --servers and --workers too"),
        (["--elastic", "1:2"], "--elastic is for many processes: give --servers and --workers too"),
        (
            ["--servers", "1", "--workers", "1", "--elastic", "1:2", "--no-leases"],
            "--elastic hands data out in pieces (leases), for trainers come and go: leave out --no-leases",
        ),
        (
            ["--servers", "1", "--workers", "1", "--leases", "--reader", "memory"],
            "--leases hands out files that are streamed; --reader memory keeps its own share: use queue",
        ),
        (
            ["--servers", "1", "--workers", "1", "--elastic", "1:2", "--reader", "feeder"],
            "--elastic hands out files that are streamed; --reader feeder keeps its own share: use queue",
        ),
    ],
)
def test_leases_that_cannot_be_are_refused(
    small_clicks: Path, options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("train", "--data", small_clicks / "train", *options)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_the_parent_decides_once_for_all_roles_whether_data_is_leased(
    small_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[bool] = []

    def note(command: Any, *given: object, **more: object) -> launch.Outcome:
        words = command(None)
        flags = [word for word in words if word in ("--leases", "--no-leases")]
        assert len(set(flags)) == 1, words
        told.append(flags[0] == "--leases")
        return launch.Outcome(0)

    monkeypatch.setattr(launch, "run_local", note)
    for name, positions in (
        ("shares", {"0": {}, "1": {}}),
        ("pieces", {"leases": {}}),
        ("one", {"0": {}}),
        ("end", {}),
    ):
        LocalStore().save(str(tmp_path / name / "step-00000001"), RunFacts(step=1, positions=positions))
    job = ("train", "--data", small_clicks / "train", *SMALL, "--servers", 1, "--workers", 2)
    for more, leased in (
        ((), True),
        (("--no-leases",), False),
        (("--elastic", "1:3"), True),
        (("--reader", "memory"), False),
        (("--resume", "shares"), False),
        (("--resume", "auto", "--save", "shares"), False),
        (("--resume", "shares", "--leases"), True),  # trainers refuse it, and say why
        (("--resume", "pieces"), True),
        (("--resume", "one"), True),
        (("--resume", "end"), True),
        (("--resume", "auto", "--save", "new"), True),
    ):
        done = invoke(*job, *more)
        assert done.exit_code == 0, done.stderr
        assert told.pop() == leased, more
        said = "cut within an epoch whose data 2 trainers had shares of" in " ".join(done.stderr.split())
        assert said == ("shares" in more and not leased), more


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sync_is_repeated_bit_by_bit_and_goes_on_from_shares_and_pieces(shell: CommandLine, small_clicks: Path) -> None:
    def job(workers: int, *more: object) -> tuple[object, ...]:
        # By hundreds, so that a run has a few steps: not all of its checkpoints may be of an epoch's end.
        often = ("--batch-size", 50, "--save-every", 4, "--keep", 100)
        return train(small_clicks, "--servers", 2, "--workers", workers, "--mode", "sync", *often, *more)

    def within_epoch(folder: str) -> tuple[str, int]:
        """A checkpoint of the middle of an epoch, and how many samples of it are trained."""
        for step in sorted((shell.folder / folder).glob("step-*")):
            manifest = Checkpoint.open(step).manifest
            if manifest.positions:
                return f"{folder}/{step.name}", ClickMetrics.from_dict(manifest.extra["training"]["metrics"]).rows
        raise AssertionError(f"{folder} has none")

    first = shell.result(*job(2, "--save", "pieces"))
    second = shell.result(*job(2, "--save", "again"))
    assert first["rows"] == second["rows"] == 2000
    assert diff(str(shell.folder / "pieces"), str(shell.folder / "again"))["same"]
    assert shell.result(*job(2, "--save", "shares", "--no-leases"))["rows"] == 2000

    place, done = within_epoch("pieces")
    assert set(Checkpoint.open(shell.folder / place).manifest.positions) == {"leases"}
    on = shell.result(*job(2, "--save", "on", "--resume", place))
    assert on["rows"] == 2000 - done
    assert diff(str(shell.folder / "pieces"), str(shell.folder / "on"))["same"], "as if it had not been stopped"
    assert shell.result(*job(3, "--resume", place, "--save", "three"))["rows"] == 2000 - done

    place, done = within_epoch("shares")
    on = shell.result(*job(2, "--save", "on_shares", "--resume", place))
    assert on["rows"] == 2000 - done
    assert diff(str(shell.folder / "shares"), str(shell.folder / "on_shares"))["same"]
    other = shell.run(*job(3, "--resume", place, "--save", "none"))
    assert other.returncode == 1
    assert "they do not fit 3: resume with as many" in " ".join(other.stderr.split())
    other = shell.run(*job(2, "--resume", place, "--save", "none", "--leases"))
    assert other.returncode == 1
    said = " ".join(other.stderr.split())
    assert "resume it without leases (--no-leases, split_files), with as many trainers" in said


def test_two_jobs_at_once_do_not_share_a_folder_of_logs(
    small_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each told the result of whichever had written last, the other one's model too."""
    monkeypatch.chdir(tmp_path)
    with only_ours(tmp_path / "log"):
        (tmp_path / "log" / "workerlog.0").write_text("of the first job")
        done = invoke("train", "--data", small_clicks / "train", "--servers", "1", "--workers", "1")
        assert done.exit_code == 1
        assert "log_dir='log' is in use: another job that runs now" in " ".join(done.stderr.split())
        (tmp_path / "job.py").write_text("")
        by_script = main(["--server_num=1", "--worker_num=1", str(tmp_path / "job.py")])
    assert by_script == 2
    done = invoke("train", "--data", small_clicks / "train", "--servers", "1", "--workers", "1", "--log-dir", "x" * 300)
    assert done.exit_code == 1
    assert "cannot be used: File name too long" in " ".join(done.stderr.split())
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["workerlog.0"]
    assert (tmp_path / "log" / "workerlog.0").read_text() == "of the first job"


def test_servers_cannot_be_asked_for_within_a_job(small_clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Role.worker(1, 2, ["127.0.0.1:1"]).environment().items():
        monkeypatch.setenv(name, value)
    done = invoke("train", "--data", small_clicks / "train", "--servers", 1, "--workers", 1)
    assert done.exit_code == 1
    assert "the environment makes this process worker 1" in " ".join(done.stderr.split())


def test_a_contradictory_environment_names_its_variable(small_clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ROLE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    done = invoke("train", "--data", small_clicks / "train")
    assert done.exit_code == 1
    assert "PADDLE_TRAINERS_NUM is not set" in done.stderr


def test_the_parent_hands_on_what_was_given_but_its_own_options() -> None:
    heard: list[list[str]] = []
    parser = typer.Typer()

    @parser.command()
    def command(
        context: typer.Context,
        data: str = "d",
        servers: int = 0,
        workers: int = 0,
        pipe_command: str = "",
        flag: bool = typer.Option(False, "--flag"),
        rate: float = 0.5,
    ) -> None:
        heard.append(handed_on(context))

    words = ["--data", "a b", "--servers", "2", "--workers=3", "--pipe-command", "cut -d= -f1", "--flag"]
    assert CliRunner().invoke(parser, words).exit_code == 0
    assert heard == [["--data=a b", "--pipe-command=cut -d= -f1", "--flag"]]


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])
