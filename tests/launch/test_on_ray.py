"""`--on ray`: what is refused, and one small job; whole jobs stand in test_on_ray_jobs.py."""

from __future__ import annotations

import os
import re
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ray_cluster import ray_cluster

from sparsefleet.cli.train_roles import paths_in_full
from sparsefleet.core.errors import ConfigError
from sparsefleet.launch import command, main
from sparsefleet.launch.on_ray import options
from sparsefleet.launch.on_ray.actor import RoleActor, working_folder
from sparsefleet.launch.on_ray.needs import RayNeeds, in_words, parse_memory

JOB_SECONDS = 240.0
"""However busy the machine is."""
SCRIPT = """\
import os, sys, time
from pathlib import Path

import beside  # shipped with the script

if "--fail" in sys.argv:
    import a_module_that_nobody_has
names = ("TRAINING_ROLE", "PADDLE_TRAINER_ID", "PADDLE_PSERVERS_IP_PORT_LIST")
print(beside.WORD, *(os.environ.get(name, "-") for name in names), bool(os.environ["SPARSEFLEET_TOKEN"]))
"""


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("100", 100), ("1 tb", 1 << 40)]
)
def test_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_memory("--server_memory", text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "1X"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--server_memory=.* is no amount of memory; write 512M or 2G"):
        parse_memory("--server_memory", text)


def test_needs_refuse_nonsense() -> None:
    with pytest.raises(ConfigError, match="worker_cpus=0 must be a number of processors above 0"):
        RayNeeds(worker_cpus=0)
    with pytest.raises(ConfigError, match="server_memory=0 must be"):
        RayNeeds(server_memory=0)
    assert in_words(RayNeeds(server_cpus=0.5).of("server")) == "0.5 CPU and 1.0 GiB"


@pytest.mark.parametrize(
    ("counts", "nodes", "why"),
    [
        ({"server": 1, "worker": 2}, [(2, 4), (1, 4)], None),
        ({"server": 1, "worker": 3}, [(2, 4), (1, 4)], "it is too small for the job unless nodes join"),
        ({"server": 3, "worker": 0}, [(8, 2)], "it is too small for the job unless nodes join"),
        ({"server": 1, "worker": 0}, [], "it is too small for the job unless nodes join"),
        ({"server": 0, "worker": 0}, [], None),
    ],
)
def test_a_cluster_that_can_never_have_room_is_known(
    counts: dict[str, int], nodes: list[tuple[float, int]], why: str | None
) -> None:
    resources = [{"CPU": cpus, "memory": float(gigas << 30)} for cpus, gigas in nodes]
    assert RayNeeds().why_never(counts, resources) == why


@pytest.mark.parametrize("needs", [RayNeeds(worker_cpus=3), RayNeeds(worker_memory=5 << 30)])
def test_a_role_needs_all_its_room_on_one_node(needs: RayNeeds) -> None:
    """The nodes together have enough of it."""
    nodes = [{"CPU": 2.0, "memory": float(4 << 30), "node:127.0.0.2": 1.0}] * 3
    why = needs.why_never({"server": 1, "worker": 1}, nodes)
    assert why is not None
    assert why.startswith(
        "no node is large enough for a worker: ask for less (--worker-cpus, --worker-memory), or wait"
    )


class _Dashboard(socketserver.BaseRequestHandler):
    """What listens at Ray's port 8265, say: no head."""

    def handle(self) -> None:
        self.request.recv(1024)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_an_address_where_something_else_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for minutes."""
    pytest.importorskip("ray")
    from sparsefleet.launch.on_ray.cluster import connected

    with socketserver.TCPServer(("127.0.0.2", 0), _Dashboard) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        address = f"127.0.0.2:{server.server_address[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=rf"no Ray cluster at '{address}' \(something else listens there") as said:
            connected(None).__enter__()
        thread.join(10)
    assert "own port is 6379" in str(said.value)


def test_paths_are_handed_on_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--data=d/train", "--save=s3://bucket/model", "--resume=/abs", "--epochs=2", "--shuffle"]
    full = [f"--data={tmp_path}/d/train", "--save=s3://bucket/model", "--resume=/abs", "--epochs=2", "--shuffle"]
    assert paths_in_full(given) == full


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "ray", "train.py"], "--on ray needs --server_num and --worker_num"),
        (["--on", "ray", "--servers", "h:1", "--workers", "h", "train.py"], "--servers is for hosts that you name"),
        (["--server_num", "1", "--worker_num", "1", "--ship", "x", "train.py"], "--ship belongs to --on ray"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_without_ray_one_line_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    (tmp_path / "train.py").write_text("")
    assert main(["--on", "ray", "--server_num", "1", "--worker_num", "1", str(tmp_path / "train.py")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "fleetrun: --on ray needs Ray, which is not installed: pip install 'sparsefleet[ray]'"


def test_an_interrupt_before_the_job_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To import Ray and to connect takes seconds."""

    def connecting(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_script_on_ray", connecting)
    (tmp_path / "train.py").write_text("")
    assert main(["--on", "ray", "--server_num", "1", "--worker_num", "1", str(tmp_path / "train.py")]) == 130
    assert capsys.readouterr().err == "fleetrun: interrupted\n"


def run_script(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """SCRIPT as a job of one server and one worker, with what lies beside it."""
    (folder / "job").mkdir()
    (folder / "job" / "train.py").write_text(SCRIPT)
    (folder / "job" / "beside.py").write_text("WORD = 'shipped'\n")
    command = [sys.executable, "-m", "sparsefleet.launch", "--on", "ray", "--server_num=1", "--worker_num=1"]
    command += ["--server_cpus=0.5", "--worker_cpus=0.5", "--worker_memory=64M", "--server_memory=64M"]
    command += ["job/train.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS)


def test_a_folder_that_was_made_anew_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    folder.mkdir()
    assert working_folder() == str(folder)


ACTOR_IN_A_FOLDER_MADE_ANEW = """\
import os, sys, types
from pathlib import Path

folder = Path(sys.argv[1])
os.chdir(folder)
folder.rmdir()  # as Ray does to an idle process's
if sys.argv[2] == "anew":
    folder.mkdir()
    (folder / "beside.py").write_text("WORD = 'shipped'")
context = types.SimpleNamespace(gcs_address="127.0.0.2:1")
util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.2")
sys.modules["ray"] = types.SimpleNamespace(get_runtime_context=lambda: context, util=util)

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role
from sparsefleet.launch.on_ray.actor import RoleActor

actor = RoleActor(f"test-of-a-folder-{os.getpid()}", 0.0, 0.0)  # the end of one kills all of its mark
try:
    role = Role.server(0, 1, ("127.0.0.1:1",))
    actor.start(role, ["python", "-c", "import os, beside; print(os.getcwd(), beside.WORD)"], "python", {}, None)
    output, report = b"", None
    while report is None or report.exit is None:
        report = actor.report(len(output), 20.0)
        output += report.output
    print(output.decode().strip(), report.exit.status)
except ConfigError as error:
    print(error)
finally:
    actor.end(at_once=True)
    actor.close()
"""


@pytest.mark.parametrize("folder", ["anew", "gone"])
def test_an_actor_whose_folder_was_made_anew_starts_its_role_there(tmp_path: Path, folder: str) -> None:
    """All of it, in a process that is there already: what an actor imports must not mind either."""
    (tmp_path / "shipped").mkdir()
    command = [sys.executable, "-c", ACTOR_IN_A_FOLDER_MADE_ANEW, str(tmp_path / "shipped"), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-1]
    if folder == "anew":
        assert said == f"{tmp_path / 'shipped'} shipped 0", done.stdout
    else:
        assert said.startswith(f"node 127.0.0.2 has no folder {tmp_path / 'shipped'}, in which roles are to run (No su")


def test_a_node_that_does_not_see_the_cuts_is_found_out(tmp_path: Path) -> None:
    actor = RoleActor(f"test-of-sees-{os.getpid()}", 0.0, 0.0)
    try:
        (tmp_path / "mark").write_text("word")
        assert actor.sees(str(tmp_path / "mark"), "word") is None
        assert actor.sees(str(tmp_path / "mark"), "another") == "the file there is not the driver's"
        assert actor.sees(str(tmp_path / "absent"), "word") == "No such file or directory"
        assert actor.sees(f"file://{tmp_path}/mark", "word") is None
        assert actor.sees(f"file://{tmp_path}/mark", "another") == "the file there is not the driver's"
        assert "absent" in str(actor.sees(f"file://{tmp_path}/absent", "word"))
    finally:
        actor.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("ray")
def test_an_import_that_the_nodes_lack_is_told_once(tmp_path: Path) -> None:
    with ray_cluster([1]) as cluster:
        failed = run_script(tmp_path, cluster.environment, "--fail")
        assert failed.returncode == 1
        error = "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
        # In the line of the role that failed, and at the end of the traceback that is quoted; not once per role.
        told = [line for line in failed.stderr.splitlines() if error in line]
        assert len(told) <= 2, failed.stderr
        assert failed.stderr.count("Traceback") == 1


@pytest.mark.timeout(400)  # Ray's own start alone takes a minute and more where everybody wants the processor
@pytest.mark.xdist_group("ray")
def test_a_small_job_on_one_node(tmp_path: Path) -> None:
    with ray_cluster([1]) as cluster:
        done = run_script(tmp_path, cluster.environment)
        assert done.returncode == 0, done.stderr
        assert "started 1 server and 1 worker on 1 node of Ray" in done.stderr
        server = (tmp_path / "log" / "serverlog.0").read_text()
        worker = (tmp_path / "log" / "workerlog.0").read_text()
        assert re.search(r"^shipped PSERVER - 127\.0\.0\.2:\d+ True$", server, re.MULTILINE), server
        assert re.search(r"^shipped TRAINER 0 127\.0\.0\.2:\d+ True$", worker, re.MULTILINE), worker
    nowhere = dict(os.environ, RAY_ADDRESS="127.0.0.2:1")
    command = [
        sys.executable,
        "-m",
        "sparsefleet.launch",
        "--on=ray",
        "--server_num=1",
        "--worker_num=1",
        "job/train.py",
    ]
    refused = subprocess.run(command, cwd=tmp_path, env=nowhere, capture_output=True, text=True, timeout=JOB_SECONDS)
    assert refused.returncode == 2
    assert "there is no Ray cluster at '127.0.0.2:1' (Connection refused): start one" in refused.stderr
