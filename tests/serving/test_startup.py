"""A server that cannot begin as it was told to: one line says why, and the exit status is 1."""

import socket
import subprocess
import sys

import pytest
from http_server import SOURCES

from sparsefleet.core.errors import ConfigError
from sparsefleet.serving.config import ServeConfig


def refused(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "sparsefleet", "serve", *map(str, arguments), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(SOURCES)},
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_second_bundle_that_cannot_serve_ends_it_in_words(trained, tmp_path):
    for option in ("--canary", "--shadow"):
        assert "no bundle at" in refused(trained.bundles[0], option, tmp_path / "none")
        assert "nothing to compare" in refused(trained.bundles[0], option, trained.bundles[0])


def test_a_log_of_requests_that_cannot_be_written_ends_it_in_words(trained, tmp_path):
    said = refused(trained.bundles[0], "--log-requests", tmp_path / "none" / "log.jsonl")
    assert "cannot log requests to" in said


def test_a_port_for_grpc_that_is_taken_ends_it_in_words(trained):
    pytest.importorskip("grpc", reason="no grpcio: pip install 'sparsefleet[grpc]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port} for gRPC" in refused(trained.bundles[0], "--grpc-port", port)


@pytest.mark.parametrize(
    "name",
    ["deadline", "linger", "drain_timeout", "watch_seconds", "header_timeout", "body_timeout", "answer_timeout"],
)
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_times_are_numbers_of_seconds(name, seconds):
    with pytest.raises(ConfigError, match=f"{name}=.* must be seconds"):
        ServeConfig("bundle", **{name: seconds})
