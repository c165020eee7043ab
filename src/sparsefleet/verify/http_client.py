"""A plain HTTP client of `sparsefleet serve`: one connection, kept open, with a time-out. Not shared by threads.

Why not httpx: it takes 4.5 times the processor time for a small prediction (benchmarks/clients.md), would replace about
30 of these lines, and would be one more package for a machine that only verifies.
"""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.core.tokens import PREDICT_TOKEN, check_token

MAX_ANSWER = 1 << 28
ONLY = ""
"""Stands for the label of a model that has one: its scores have no name."""


class PlaceError(SparseFleetError):
    """A server that cannot be reached, does not answer in time, or answers something else than asked for."""


class RefusedError(PlaceError):
    """The server answered, and refused: its status and its words."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url} answered {status}: {reason}")
        self.status, self.reason = status, reason


class HttpClient:
    """It shows the token of the variable SPARSEFLEET_PREDICT_TOKEN, where that is set."""

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"{url!r} is not the address of a server; it looks like http://127.0.0.1:8000")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._connection = kind(parts.hostname, port, timeout=timeout)
        self._timed: _Timed
        token = os.environ.get(PREDICT_TOKEN)
        if token:
            check_token(PREDICT_TOKEN, token)
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._ask("POST", path, json.dumps(body).encode())

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        try:
            status, raw = self._exchange(method, path, body)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # A kept connection that the server closed meanwhile. Asking twice changes nothing: scores have no effect.
            self._connection.close()
            status, raw = self._exchange_or_fail(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if status != 200:
            told = answer.get("error") if isinstance(answer, dict) else None
            reason = str(told or raw[:200].decode(errors="replace"))
            if status == 401:
                reason += f" (here: set the variable {PREDICT_TOKEN} to it)"
            raise RefusedError(self.url + path, status, reason)
        if answer is None:
            raise PlaceError(f"{self.url}{path} answered something that is not JSON: is it a server of ours?")
        return answer

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        # Ours are no clients' requests: a server's log must not lose those for them.
        headers = {**self._headers, **({"content-type": "application/json", "x-log": "no"} if body is not None else {})}
        connection = self._connection
        if connection.sock is None:
            connection.connect()
            self._timed = connection.sock = _Timed(cast(socket.socket, connection.sock))
        self._timed.begin(self._timeout)
        connection.request(method, self._prefix + path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER)

    def _exchange_or_fail(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            return self._exchange(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> PlaceError:
        self._connection.close()
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return PlaceError(f"{self.url} cannot be reached: {reason}; is the server running?")


class _Timed:
    """A socket with one deadline for a whole exchange: its own time-out begins anew with every byte that comes."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._deadline = 0.0

    def begin(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def sendall(self, data: Any) -> None:
        self._limit()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self), 1 << 16)

    def recv_into(self, buffer: Any) -> int:
        self._limit()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._socket.close()

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


class _Reader(io.RawIOBase):
    def __init__(self, source: _Timed) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._source.recv_into(buffer)


def scores_of(answer: Any, rows: int, url: str) -> tuple[str, dict[str, list[float]]]:
    """(version, scores by label) of an answer to a prediction; of a model of one label, under `ONLY`."""
    if isinstance(answer, dict):
        version, found = answer.get("version"), labelled_scores(answer)
        if isinstance(version, str) and found is not None and all(len(scores) == rows for scores in found.values()):
            return version, found
    raise PlaceError(f'{url} did not answer {{"version": …, "scores": […]}} for {rows} rows: {str(answer)[:200]}')


def labelled_scores(answer: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """The scores of an answer, or of a logged one, by label; None where they are no lists of finite numbers."""
    scores, named = answer.get("scores"), answer.get("scores_by_label")
    found = {ONLY: scores} if named is None else named
    if not isinstance(found, dict) or not found or not all(_finite(each) for each in [scores, *found.values()]):
        return None
    return {name: [float(score) for score in each] for name, each in found.items()}


def _finite(scores: Any) -> bool:
    return isinstance(scores, list) and all(type(score) in (int, float) and math.isfinite(score) for score in scores)
