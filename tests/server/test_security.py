"""Tokens, TLS, and where a server listens."""

from __future__ import annotations

import shutil
import subprocess
import time

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import ConfigError, StoreError
from sparsefleet.server import ServerConfig
from sparsefleet.server.process import ParameterServer
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(1.0))
TOKEN = {"SPARSEFLEET_TOKEN": "a secret of some length"}


def test_only_who_knows_the_token_is_served(fleet):
    fleet.start(1, env=TOKEN)
    with pytest.raises(StoreError, match=r"refused register: .*wants a token; none came: set SPARSEFLEET_TOKEN"):
        fleet.store(connect_timeout=3)
    with pytest.raises(StoreError, match="wants a token; another came"):
        fleet.store(token="a guess", connect_timeout=3)
    store = fleet.store(token=TOKEN["SPARSEFLEET_TOKEN"])
    store.create_table(SPEC)
    assert store.pull("ads", np.arange(3, dtype=np.uint64)).wait().shape == (3, 2)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_tls_with_certificates(fleet, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    fleet.start(1, "--tls-certificate", str(certificate), "--tls-key", str(key), env=TOKEN)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"server 0 .* cannot be talked to: it speaks TLS: set SPARSEFLEET_TLS_ROOTS"):
        fleet.store(token=TOKEN["SPARSEFLEET_TOKEN"])
    assert time.monotonic() - began < 30, "not waited for"
    store = fleet.store(tls_root_certs=certificate.read_bytes(), token=TOKEN["SPARSEFLEET_TOKEN"])
    store.create_table(SPEC)
    assert store.pull("ads", np.arange(3, dtype=np.uint64)).wait().shape == (3, 2)


def test_a_server_listens_beyond_this_machine_only_with_a_token_or_on_demand():
    for host in ("0.0.0.0", "::", "10.1.2.3", "server.example"):
        with pytest.raises(
            ConfigError, match=rf"host='{host}' is reachable from other machines: set a token"
        ) as caught:
            ServerConfig(host=host)
        assert "SPARSEFLEET_TOKEN" in str(caught.value)
        assert "SPARSEFLEET_INSECURE=1 (insecure=True)" in str(caught.value)
        ServerConfig(host=host, token="secret")
        ServerConfig(host=host, insecure=True)
    for host in ("127.0.0.1", "localhost", "::1"):
        ServerConfig(host=host)


def test_a_token_that_cannot_travel_is_refused_by_both_sides():
    for config in (ServerConfig, lambda token: ServerLink(RemoteConfig(("127.0.0.1:1",), token=token), 0)):
        with pytest.raises(ConfigError, match=r"SPARSEFLEET_TOKEN .* ends in a line end"):
            config(token="secret\n")


def test_certificates_that_are_none_are_refused_at_once():
    config = ServerConfig(tls_certificate=b"junk", tls_key=b"junk")
    with pytest.raises(StoreError, match=r"server 0 cannot listen on .*: tls_certificate and tls_key are not a cert"):
        ParameterServer(config)
    with pytest.raises(ConfigError, match=r"tls_root_certs \(SPARSEFLEET_TLS_ROOTS\) holds no certificate"):
        ServerLink(RemoteConfig(("127.0.0.1:1",), tls_root_certs=b"junk"), 0)


def test_nonsense_settings_are_refused():
    for settings, reason in [
        ({"port": 70000}, "port=70000 must be 0 to 65535"),
        ({"index": 2, "endpoints": ("a:1", "b:2")}, "index=2 must be 0 to 1"),
        ({"workers": 0}, "workers=0 must be 1 or above"),
        ({"timeout": 0}, "timeout=0 must be above 0 seconds"),
        ({"lost_trainer": "cry"}, "lost_trainer='cry' must be 'error' or 'drop'"),
        ({"tls_key": b"x"}, "tls_certificate and tls_key go together"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            ServerConfig(**settings)


def test_secrets_are_not_shown():
    assert "secret" not in repr(ServerConfig(token="secret", tls_key=b"secret", tls_certificate=b"secret"))


@pytest.mark.parametrize(
    ("options", "env", "said"), [((), {}, 1), ((), TOKEN, 0), (("--insecure",), {}, 0)], ids=["none", "token", "known"]
)
def test_a_server_without_a_token_says_once_what_that_means(fleet, capfd, options, env, said):
    fleet.start(1, *options, env={"SPARSEFLEET_TOKEN": "", "SPARSEFLEET_INSECURE": "", **env})
    store = fleet.store(token=env.get("SPARSEFLEET_TOKEN"))
    store.create_table(SPEC)
    err = capfd.readouterr().err
    assert err.count("server 0 has no token: every user of this machine can read and change") == said
    assert err.count("Set SPARSEFLEET_TOKEN to the same secret for every process") == said
