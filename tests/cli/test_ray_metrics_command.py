"""`sparsefleet ray-metrics` as a process: it serves until a signal, or says in a line why it cannot."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import CommandLine, command_line

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'sparsefleet[ray]')", allow_module_level=True)

import prometheus_client
from typer.testing import CliRunner

from sparsefleet.cli.app import app
from sparsefleet.launch.on_ray import options

LIST = "prom_metrics_service_discovery.json"
FREE = ("--port", "0", "--prometheus-port", "0")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as made:
        yield made


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Path]:
    """A folder as a head's, whose list names a real endpoint."""
    registry = prometheus_client.CollectorRegistry()
    gauge = prometheus_client.Gauge("ray_sparsefleet_loss", "Loss", ["job_name", "role"], registry=registry)
    gauge.labels("sparsefleet-1", "worker 0").set(0.25)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / LIST).write_text(json.dumps([{"targets": [f"127.0.0.1:{server.server_port}"]}]))
    yield folder
    server.shutdown()
    server.server_close()
    thread.join(10)


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_it_serves_until_a_signal(number: signal.Signals, shell: CommandLine, head: Path) -> None:
    process = shell.start("ray-metrics", "--temp-dir", head, *FREE)
    assert process.stdout is not None
    about = json.loads(process.stdout.readline())
    base = about["url"].removesuffix("/d/sparsefleet/")
    assert b"SparseFleet training on Ray" in get(about["url"])
    assert json.loads(get(f"{base}/api/health"))["database"] == "ok"
    asked = get(f"http://127.0.0.1:{about['prometheus_port']}/api/v1/query?query=vector(1)")
    assert json.loads(asked)["status"] == "success"
    charts = {chart["name"]: chart for chart in json.loads(get(f"{base}/sparsefleet/figures"))["charts"]}
    assert charts["loss"]["lines"][0]["points"][0][1] == 0.25
    # A browser's open connection keeps nobody from ending.
    with socket.create_connection(("127.0.0.1", about["prometheus_port"]), 10):
        process.send_signal(number)
        done = shell.finish(process, 20)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told_with_who_may_have_it(shell: CommandLine, head: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        grafana = shell.run("ray-metrics", "--temp-dir", head, "--port", port, "--prometheus-port", "0")
        prometheus = shell.run("ray-metrics", "--temp-dir", head, "--port", "0", "--prometheus-port", port)
    assert grafana.returncode == prometheus.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken; probably a Grafana runs there" in grafana.stderr
    assert "deploy/grafana/training.json" in grafana.stderr
    assert f"port {port} of 127.0.0.1 is taken; if a Prometheus runs there, give --no-prometheus" in prometheus.stderr
    assert "Traceback" not in grafana.stderr + prometheus.stderr


def test_no_cluster_is_told_in_a_line(shell: CommandLine, tmp_path: Path) -> None:
    done = shell.run("ray-metrics", "--temp-dir", tmp_path / "nowhere", *FREE)
    assert done.returncode == 1
    assert "nowhere, where a head of Ray keeps its files" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["ray-metrics"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "ray-metrics needs Ray, which is not installed: pip install 'sparsefleet[ray]'" in done.output
