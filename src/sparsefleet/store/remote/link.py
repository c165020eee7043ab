"""ServerLink: one server as a client sees it: where it is, and actions on it, each with a deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.wire import PROTOCOL, read_json, refused, to_json
from sparsefleet.store.wire.auth import ROOTS_VARIABLE, TOKEN_VARIABLE, SendToken
from sparsefleet.store.wire.stranger import Stranger
from sparsefleet.store.wire.tls import check_roots, mismatch

log = logging.getLogger(__name__)
T = TypeVar("T")

BROKEN = (flight.FlightError, pa.ArrowException, OSError, StopIteration)
"""What Flight raises when a connection or a server is gone."""

NOT_UP = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightInternalError)
"""What registering raises while a server is still starting."""

LOOK_SECONDS = 2.0
"""How long a look at who listens there may take."""

MISMATCH_SECONDS = 3.0
"""How long it must look as if a server could not be talked to before that is believed: longer than gRPC waits between
two tries. Perhaps it has not tried the one that is up now, and takes what we would not."""
GIVEN_UP_SECONDS = 0.5

TELL_AFTER = 2.0
"""Servers start together with trainers: a moment's wait is nothing to speak of."""
TELL_EVERY = 5.0


class Mismatch(StoreError):
    """This client and that server speak past each other."""


class Saved:
    """The newest checkpoint that this trainer has heard of, from whichever server."""

    path: str | None = None


class ServerLink:
    def __init__(self, config: RemoteConfig, index: int, saved: Saved | None = None) -> None:
        self.config, self.index, self.endpoint = config, index, config.endpoints[index]
        self.saved = saved or Saved()
        self.server_id: str | None = None
        """Which life of the server we registered with."""
        self._answered = False
        self.heard = time.monotonic()
        """When the server last answered anything: a call, or a stream that waits."""
        self._given_up = False
        """It was silent for the time-out: until it answers again, nobody waits for it that long once more."""
        self.check_all: Callable[[], None] = lambda: None
        """Raises if any server of the job is silent: who waits here for other trainers may wait because of it."""
        if config.tls_root_certs is not None:
            check_roots(config.tls_root_certs, f"tls_root_certs ({ROOTS_VARIABLE})")
        scheme = "grpc+tls" if config.tls_root_certs else "grpc"
        self.client = flight.FlightClient(
            f"{scheme}://{self.endpoint}",
            tls_root_certs=config.tls_root_certs,
            middleware=[SendToken(config.token)] if config.token else None,
            generic_options=[
                # The job's own addresses: gRPC would ask the proxy of http_proxy, https_proxy or grpc_proxy for them.
                ("grpc.enable_http_proxy", 0),
                # Else gRPC backs off for up to two minutes while a server starts.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                # Else a write to a server that is stopped, or cut off, blocks for ever once the socket is full:
                # cancelling the call does not free it. This sets TCP_USER_TIMEOUT. (Servers take it ill if they are
                # pinged more often than every five minutes.)
                ("grpc.keepalive_time_ms", 310_000),
                ("grpc.keepalive_timeout_ms", max(1, round(1000 * config.timeout))),
            ],
        )

    def __str__(self) -> str:
        return f"server {self.index} ({self.endpoint})"

    def action(self, name: str, data: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Ask the server and return its answer; StoreError when it refuses, fails or does not answer in time."""
        seconds = self.config.timeout if timeout is None else timeout
        if self._given_up:
            seconds = min(seconds, GIVEN_UP_SECONDS)
        body = to_json({"protocol": PROTOCOL, **data})
        try:
            results = list(
                self.client.do_action(flight.Action(name, body), flight.FlightCallOptions(timeout=max(seconds, 0.001)))
            )
        except BROKEN as error:
            never = self._never(error, min(LOOK_SECONDS, seconds))
            if never is not None:
                raise Mismatch(f"{self} cannot be talked to: {never}") from None
            raise self.failed(name, error, seconds) from error
        self._answered, self._given_up, self.heard = True, False, time.monotonic()
        answer = read_json(results[0].body.to_pybytes() if results else b"", f"{self}'s answer to {name}", 1 << 30)
        if "error" in answer:
            raise refused(answer, f"{self}, {name}")
        return answer

    def _never(self, error: BaseException, seconds: float) -> str | None:
        """Why waiting for this server is in vain, where it has never answered and that can be seen."""
        # Who is there and does not answer at all is stopped or overloaded: a look would only wait once more.
        if self._answered or not isinstance(error, flight.FlightUnavailableError) or not seconds > 0:
            return None
        return mismatch(self.endpoint, self.config.tls_root_certs, seconds)

    def failed(self, operation: str, error: BaseException, seconds: float) -> StoreError:
        """The error to raise for a call that got no answer."""
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            return StoreError(f"{self} refused {operation}: {_first_line(error)} (see {TOKEN_VARIABLE})")
        if isinstance(error, flight.FlightTimedOutError):
            return self.silent(operation, seconds)
        return StoreError(f"{self} cannot be reached for {operation}: {_first_line(error)}.{self._advice()}")

    def silent(self, operation: str, seconds: float) -> StoreError:
        self._given_up = self._given_up or seconds >= self.config.timeout
        return StoreError(
            f"{self} did not answer {operation} within {seconds:g} s: it is dead, stopped, cut off, or overloaded "
            f"(then raise timeout).{self._advice()}"
        )

    def restarted(self, operation: str) -> StoreError:
        return StoreError(f"{self} was restarted before {operation} and has lost its parameters.{self._advice()}")

    def _advice(self) -> str:
        known = f"resume from {self.saved.path}" if self.saved.path else "no checkpoint was saved in this run"
        return f" Look at that server's log; {known}"

    def heard_of(self, answer: Mapping[str, Any]) -> None:
        """Note the newest checkpoint that an answer tells of. Server 0 is the first to know of one."""
        if self.index == 0:
            self.saved.path = answer.get("last_checkpoint") or self.saved.path

    def register(
        self,
        incarnation: str,
        about: str,
        while_waiting: Callable[[], None] = lambda: None,
        attempt: int | None = None,
    ) -> dict[str, Any]:
        """Make ourselves known, waiting for a server that is not up yet; its answer.

        while_waiting: called now and then; raises where it has become known that the server will not come up.
        """
        config, start, told = self.config, time.monotonic(), 0.0
        mismatched: float | None = None
        stranger = Stranger(self.endpoint, tls=config.tls_root_certs is not None)
        request = {
            "worker": config.worker,
            "incarnation": incarnation,
            "workers": config.workers,
            "servers": list(config.endpoints),
            "index": self.index,
            "about": about,
            "mode": config.mode,
            "attempt": attempt,
            "fits": config.fits,
        }
        while True:
            try:
                answer = self.action("register", request, min(5.0, config.connect_timeout))
                self.server_id = str(answer["server"])
                self.heard_of(answer)
                return answer
            except StoreError as error:
                waited = time.monotonic() - start
                if isinstance(error, Mismatch):
                    mismatched = waited if mismatched is None else mismatched
                    if waited - mismatched >= MISMATCH_SECONDS:
                        raise
                    time.sleep(0.2)
                    continue
                mismatched = None
                if not isinstance(error.__cause__, NOT_UP):
                    raise
                while_waiting()
                if why := stranger.look():
                    raise StoreError(f"{self} cannot come up: {why}") from None
                if waited >= config.connect_timeout:
                    raise StoreError(
                        f"{self} did not come up within {config.connect_timeout:g} s: is it started, is the address "
                        "right? If it only takes longer, raise connect_timeout of the strategy (sparsefleet train: "
                        f"--connect-timeout) ({_first_line(error.__cause__)})"
                    ) from error
                if waited - told >= TELL_EVERY or (not told and waited >= TELL_AFTER):
                    told = waited
                    log.warning("waiting for %s to come up (%.0f of %g s)", self, waited, config.connect_timeout)
                time.sleep(0.2)


def on_all(links: Sequence[ServerLink], act: Callable[[ServerLink], T]) -> list[T]:
    """Do something on all servers at once; the first error, once all have ended."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(link: ServerLink) -> None:
        try:
            results[link.index] = act(link)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(link,), daemon=True) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[link.index] for link in links]


def _first_line(error: BaseException) -> str:
    """What a user can make something of: gRPC tells its own way to the error before it, and its calls after it."""
    text = str(error).splitlines()
    line = text[0] if text else type(error).__name__
    return line.split(". gRPC client debug context")[0].rpartition("with message: ")[2].rpartition("last error: ")[2]
