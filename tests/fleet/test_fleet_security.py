"""Secrets and certificates from the environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from server_processes import servers

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.facade import Fleet
from sparsefleet.fleet.roles import Role
from sparsefleet.fleet.security import Security

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


def test_nothing_set_is_nothing() -> None:
    assert Security.from_environment({}) == Security()
    assert Security.from_environment({"SPARSEFLEET_TOKEN": "", "SPARSEFLEET_INSECURE": "0"}) == Security()


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return certificate, key


@needs_openssl
def test_files_are_read(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "ours")
    roots = tmp_path / "roots"
    roots.write_bytes("# Prüfstelle\n".encode() + certificate.read_bytes())
    security = Security.from_environment(
        {
            "SPARSEFLEET_TOKEN": "secret",
            "SPARSEFLEET_TLS_CERT": str(certificate),
            "SPARSEFLEET_TLS_KEY": str(key),
            "SPARSEFLEET_TLS_ROOTS": str(roots),
            "SPARSEFLEET_INSECURE": "1",
        }
    )
    assert security == Security("secret", certificate.read_bytes(), key.read_bytes(), roots.read_bytes(), True)
    assert "secret" not in repr(security), "secrets do not get into logs"


@needs_openssl
def test_files_that_cannot_work_name_their_variable(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "ours")
    _, other = make_pair(tmp_path, "other")
    junk, locked = tmp_path / "junk", tmp_path / "locked"
    junk.write_text("junk")
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-aes128", "-passout", "pass:word", "-out", str(locked)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip

    def refused(certificate: Path, key: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            Security.from_environment({"SPARSEFLEET_TLS_CERT": str(certificate), "SPARSEFLEET_TLS_KEY": str(key)})
        return str(caught.value)

    assert refused(junk, key).startswith(f"SPARSEFLEET_TLS_CERT='{junk}' holds no certificate that can be read")
    assert refused(key, certificate).startswith(f"SPARSEFLEET_TLS_CERT='{key}' holds no certificate")
    assert refused(certificate, junk).startswith(f"SPARSEFLEET_TLS_KEY='{junk}' holds no private key that can be read")
    assert refused(certificate, locked).startswith(f"SPARSEFLEET_TLS_KEY='{locked}' holds no private key")
    assert refused(certificate, other).startswith(
        f"SPARSEFLEET_TLS_KEY='{other}' is not the key of SPARSEFLEET_TLS_CERT='{certificate}'"
    )
    with pytest.raises(ConfigError, match=f"SPARSEFLEET_TLS_ROOTS='{junk}' holds no certificate that can be read"):
        Security.from_environment({"SPARSEFLEET_TLS_ROOTS": str(junk)})


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("s3cret\n", "ends in a line end"),
        ("s3cret\r\n", "ends in a line end"),
        (" s3cret", "begins or ends in a blank"),
        ("s3cret\t", "begins or ends in a blank"),
        ("s3crét", "has a character beyond ASCII"),
        ("s3cret\udcff", "has a character beyond ASCII"),
        ("s3\ncret", "has a control character in it"),
        ("s3\x7fcret", "has a control character in it"),
    ],
)
def test_a_token_that_cannot_travel_is_refused_without_showing_it(token: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Security.from_environment({"SPARSEFLEET_TOKEN": token})
    assert str(caught.value).startswith(f"SPARSEFLEET_TOKEN (token) {reason}")
    assert "allowed are visible ASCII characters" in str(caught.value)
    assert "s3" not in str(caught.value)


def test_insecure_is_said_in_the_usual_words() -> None:
    for value in ("1", "true", "YES", "On"):
        assert Security.from_environment({"SPARSEFLEET_INSECURE": value}).insecure
    for value in ("0", "False", "no", "OFF", ""):
        assert not Security.from_environment({"SPARSEFLEET_INSECURE": value}).insecure
    with pytest.raises(ConfigError, match=r"SPARSEFLEET_INSECURE='2' is neither yes \(1, true.*\) nor no \(0, false"):
        Security.from_environment({"SPARSEFLEET_INSECURE": "2"})


def test_what_is_wrong_names_its_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SPARSEFLEET_TLS_CERT and SPARSEFLEET_TLS_KEY go together"):
        Security.from_environment({"SPARSEFLEET_TLS_CERT": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"SPARSEFLEET_TLS_ROOTS='/nowhere' cannot be read: No such file"):
        Security.from_environment({"SPARSEFLEET_TLS_ROOTS": "/nowhere"})


@pytest.mark.parametrize("token", [None, "of my own"])
def test_a_trainer_without_a_token_says_once_what_that_means(
    token: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in ("SPARSEFLEET_TOKEN", "SPARSEFLEET_INSECURE"):
        monkeypatch.delenv(variable, raising=False)
    if token:
        monkeypatch.setenv("SPARSEFLEET_TOKEN", token)
    with servers() as made:
        trainer = Fleet()
        trainer.init(Role.worker(0, 1, made.start(1).endpoints))
        trainer.init_worker()
        trainer.init_worker()
        trainer.stop_worker()
        trainer.init(Role.from_environment({}))  # the process belongs to no job any more
    said = [record.getMessage() for record in caplog.records if "has no token" in record.getMessage()]
    assert len(said) == (0 if token else 1)
    assert all("worker 0 has no token: every user of this machine" in line for line in said)


def test_servers_of_other_hosts_want_a_token_themselves(caplog: pytest.LogCaptureFixture) -> None:
    Security().warn_if_open("worker 0", ["10.0.0.1:5", "127.0.0.1:5"])
    Security(insecure=True).warn_if_open("worker 0", ["127.0.0.1:5"])
    assert caplog.records == []
    Security().warn_if_open("worker 0", ["[::1]:5", "127.0.0.1:5"])
    assert len(caplog.records) == 1
