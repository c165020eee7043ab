"""Whole jobs with a shared secret and certificates, by `sparsefleet train --servers` and by fleetrun."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import SMALL, CommandLine
from waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "ctr" / "train.py"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of everyone who belongs to the job."""
    folder = tmp_path_factory.mktemp("certificates")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return {
        "SPARSEFLEET_TOKEN": "only for us",
        "SPARSEFLEET_TLS_CERT": str(certificate),
        "SPARSEFLEET_TLS_KEY": str(key),
        "SPARSEFLEET_TLS_ROOTS": str(certificate),
    }


@pytest.mark.slow
def test_nobody_gets_in_without_the_secret_or_the_certificates(
    shell: CommandLine, small_clicks: Path, secured: dict[str, str]
) -> None:
    job = ("--servers", 1, "--workers", 2, "--epochs", 10000, "--mode", "async")
    process = shell.start("train", "--data", small_clicks / "train", *SMALL, *job, environment=secured)
    log = shell.folder / "log" / "serverlog.0"
    wait_until(lambda: log.exists() and log.read_text().count("registered") == 2, 90, "two trainers")
    found = re.search(r"listens on (\S+)", log.read_text())
    assert found is not None
    endpoint = found[1]

    def status(**changed: str) -> subprocess.CompletedProcess[str]:
        return shell.run("status", endpoint, environment={**secured, **changed})

    inside = status()
    assert inside.returncode == 0, inside.stderr
    assert "SparseFeatFactors" in inside.stdout
    for secret, reason in (("", "wants a token; none came"), ("a guess", "wants a token; another came")):
        outside = status(SPARSEFLEET_TOKEN=secret)
        assert outside.returncode == 1
        assert reason in outside.stderr
        assert "SparseFeatFactors" not in outside.stdout
    open_ended = status(SPARSEFLEET_TLS_ROOTS="")
    assert open_ended.returncode == 1
    assert "it speaks TLS: set SPARSEFLEET_TLS_ROOTS" in open_ended.stderr
    process.send_signal(signal.SIGINT)
    shell.finish(process)
    assert shell.left() == []


def test_a_job_of_fleetrun_from_its_beginning_to_its_end(
    shell: CommandLine, small_clicks: Path, secured: dict[str, str]
) -> None:
    options = ("--data", small_clicks / "train", "--test-data", small_clicks / "test", "--batch-size", 100)
    launcher = ("--server_num=2", "--worker_num=2", EXAMPLE, *options, "--mode", "sync", "--save", "model")
    done = shell.run(*launcher, environment={**secured, "OMP_NUM_THREADS": "1"}, module="sparsefleet.launch")
    assert done.returncode == 0, done.stderr
    assert (shell.folder / "model" / "manifest.json").exists()
    assert not any("only for us" in path.read_text() for path in (shell.folder / "log").iterdir())
    assert shell.left() == []
