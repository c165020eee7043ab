"""Clients and servers that can never understand each other, since TLS is not what both expect, are told so soon."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.flight as flight
import pytest
from waiting import wait_until

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink
from sparsefleet.store.wire import to_json
from sparsefleet.store.wire.tls import mismatch

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")

Pair = tuple[bytes, bytes]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Certificates and keys: two for this host, one for another."""
    folder, made = tmp_path_factory.mktemp("certificates"), {}
    for name, host in (("ours", "IP:127.0.0.1"), ("unknown", "IP:127.0.0.1"), ("elsewhere", "DNS:other.example")):
        key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=test", "-addext", f"subjectAltName={host}", "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        made[name] = (certificate.read_bytes(), key.read_bytes())
    return made


class Answering(flight.FlightServerBase):
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        return [to_json({"server": "some life"})]


@contextmanager
def serving(pair: Pair | None, port: int = 0) -> Iterator[str]:
    scheme = "grpc+tls" if pair else "grpc"
    server = Answering(f"{scheme}://127.0.0.1:{port}", tls_certificates=[pair] if pair else None)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.shutdown()


def link_to(endpoint: str, roots: bytes | None = None, **settings: Any) -> ServerLink:
    return ServerLink(RemoteConfig((endpoint,), tls_root_certs=roots, **settings), 0)


@pytest.mark.parametrize(
    ("server", "roots", "reason"),
    [
        ("ours", None, r"it speaks TLS: set SPARSEFLEET_TLS_ROOTS \(tls_root_certs\)"),
        (None, "ours", "it does not speak TLS, but SPARSEFLEET_TLS_ROOTS .* is set: unset it, or"),
        ("ours", "unknown", "its certificate is not accepted: self-signed certificate. SPARSEFLEET_TLS_ROOTS"),
        (
            "elsewhere",
            "elsewhere",
            "its certificate is not accepted: IP address mismatch, .* for '127.0.0.1'",
        ),
    ],
)
def test_what_never_fits_is_said_at_once_and_harms_no_server(
    pairs: dict[str, Pair], server: str | None, roots: str | None, reason: str
) -> None:
    with serving(pairs[server] if server else None) as endpoint:
        began = time.monotonic()
        link = link_to(endpoint, pairs[roots][0] if roots else None)
        with pytest.raises(StoreError, match=rf"^server 0 \({endpoint}\) cannot be talked to: {reason}"):
            link.register("life", "test")
        with pytest.raises(StoreError, match=reason) as caught:  # as `sparsefleet status` asks
            link.action("stats", {})
        assert caught.value.__cause__ is None, "status tells its own story of servers that are not there"
        assert time.monotonic() - began < 10
        if server != "elsewhere":
            good = link_to(endpoint, pairs[server][0] if server else None)
            good.register("life", "test")
            assert good.server_id == "some life"


def test_a_server_that_still_starts_is_waited_for(pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    tried, action = [], ServerLink.action

    def noted(link: ServerLink, *arguments: Any) -> Any:
        try:
            return action(link, *arguments)
        finally:
            tried.append(link)

    monkeypatch.setattr(ServerLink, "action", noted)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    link = link_to(f"127.0.0.1:{port}", pairs["ours"][0], connect_timeout=30)
    registering = threading.Thread(target=link.register, args=("life", "test"), daemon=True)
    registering.start()
    wait_until(lambda: len(tried) > 1, 20, "tries that find nobody")
    assert registering.is_alive()
    with serving(pairs["ours"], port):
        registering.join(20)
        assert link.server_id == "some life"


@pytest.mark.parametrize("tls", [False, True])
def test_a_look_ends_and_says_nothing_of_who_does_not_answer(pairs: dict[str, Pair], tls: bool) -> None:
    roots = pairs["ours"][0] if tls else None
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{mute.getsockname()[1]}"
        assert mismatch(endpoint, roots, 0.3) is None, "nobody listens"
        mute.listen()
        began = time.monotonic()
        assert mismatch(endpoint, roots, 0.3) is None
        assert time.monotonic() - began < 5
    assert mismatch("no such host.invalid:80", roots, 0.3) is None


def test_who_fits_gets_no_reason(pairs: dict[str, Pair]) -> None:
    with serving(pairs["ours"]) as endpoint:
        assert mismatch(endpoint, pairs["ours"][0], 2.0) is None
    with serving(None) as endpoint:
        assert mismatch(endpoint, None, 2.0) is None
