"""The shared secret: clients send it with every call, servers compare it. Without one, both sides do nothing."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import pyarrow.flight as flight

from sparsefleet.core.errors import ConfigError

HEADER = "authorization"
TOKEN_VARIABLE = "SPARSEFLEET_TOKEN"
INSECURE_VARIABLE = "SPARSEFLEET_INSECURE"
CERTIFICATE_VARIABLE = "SPARSEFLEET_TLS_CERT"
KEY_VARIABLE = "SPARSEFLEET_TLS_KEY"
ROOTS_VARIABLE = "SPARSEFLEET_TLS_ROOTS"
"""Where processes find all this (fleet/security.py), for messages that say what to set."""
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def check_token(token: str) -> None:
    """Refuse what cannot travel in a header, or would arrive as something else. The secret itself is never shown."""
    if token.endswith(("\n", "\r")):
        wrong = "ends in a line end, perhaps that of the file it comes from"
    elif token != token.strip():
        wrong = "begins or ends in a blank"
    elif not token.isascii():
        wrong = "has a character beyond ASCII"
    elif not re.fullmatch(r"[ -~]*", token):
        wrong = "has a control character in it"
    else:
        return
    raise ConfigError(
        f"{TOKEN_VARIABLE} (token) {wrong}; allowed are visible ASCII characters, and blanks between them: set it anew"
    )


def insecure_allowed(environment: Mapping[str, str]) -> bool:
    """Whether servers may listen beyond this machine without a token, as the environment has it."""
    value = environment.get(INSECURE_VARIABLE, "").lower()
    if value not in _YES + _NO:
        raise ConfigError(
            f"{INSECURE_VARIABLE}={value!r} is neither yes ({', '.join(_YES)}) nor no ({', '.join(_NO[:-1])})"
        )
    return value in _YES


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name: it may stand for anything


def open_to_all(who: str) -> str:
    """What it means, in words, that a process of a job on loopback has no token."""
    return (
        f"{who} has no token: every user of this machine can read and change what the servers hold, and have them "
        f"write files. Set {TOKEN_VARIABLE} to the same secret for every process of the job, or start it with fleetrun "
        f"or sparsefleet train --servers, which make one; {INSECURE_VARIABLE}=1 says that you know"
    )


def _value(token: str) -> str:
    return f"Bearer {token}"


class SendToken(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        check_token(token)
        self._token = token

    def start_call(self, info: Any) -> flight.ClientMiddleware:
        return _WithToken(self._token)


class _WithToken(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {HEADER: _value(self._token)}


class CheckToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = _value(token).encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        came = [value for name, values in headers.items() if name.lower() == HEADER for value in values]
        if len(came) == 1 and hmac.compare_digest(str(came[0]).encode(), self._expected):
            return
        raise flight.FlightUnauthenticatedError(
            f"this server wants a token; {'another' if came else 'none'} came: set {TOKEN_VARIABLE} to the same value"
        )
