"""The shared secret: clients send it with every call, servers compare it. Without one, both sides do nothing."""

from __future__ import annotations

import hmac
from typing import Any

import pyarrow.flight as flight

HEADER = "authorization"
TOKEN_VARIABLE = "SPARSEFLEET_TOKEN"


def _value(token: str) -> str:
    return f"Bearer {token}"


class SendToken(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
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
