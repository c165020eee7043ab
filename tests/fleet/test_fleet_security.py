"""Secrets and certificates from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.security import Security


def test_nothing_set_is_nothing() -> None:
    assert Security.from_environment({}) == Security()
    assert Security.from_environment({"SPARSEFLEET_TOKEN": "", "SPARSEFLEET_INSECURE": "0"}) == Security()


def test_files_are_read(tmp_path: Path) -> None:
    for name in ("cert", "key", "roots"):
        (tmp_path / name).write_bytes(name.encode())
    security = Security.from_environment(
        {
            "SPARSEFLEET_TOKEN": "secret",
            "SPARSEFLEET_TLS_CERT": str(tmp_path / "cert"),
            "SPARSEFLEET_TLS_KEY": str(tmp_path / "key"),
            "SPARSEFLEET_TLS_ROOTS": str(tmp_path / "roots"),
            "SPARSEFLEET_INSECURE": "1",
        }
    )
    assert security == Security("secret", b"cert", b"key", b"roots", True)
    assert "secret" not in repr(security), "secrets do not get into logs"


def test_what_is_wrong_names_its_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SPARSEFLEET_TLS_CERT and SPARSEFLEET_TLS_KEY go together"):
        Security.from_environment({"SPARSEFLEET_TLS_CERT": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"SPARSEFLEET_TLS_ROOTS='/nowhere' cannot be read: No such file"):
        Security.from_environment({"SPARSEFLEET_TLS_ROOTS": "/nowhere"})
