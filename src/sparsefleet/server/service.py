"""The Flight service: streams become `Exchange`s, actions are looked up by name. Whatever comes, it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow.flight as flight

from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.server.exchange import Exchange
from sparsefleet.server.meetings import read_place
from sparsefleet.server.saving import Saving, need_seconds, need_text
from sparsefleet.server.sessions import Registration
from sparsefleet.server.state import ServerState
from sparsefleet.store.wire import PROTOCOL, WireError, encode, read_json, refusal, spec_from_dict, to_json
from sparsefleet.store.wire.auth import CheckToken
from sparsefleet.store.wire.segment import accepted

log = logging.getLogger(__name__)

MAX_ACTION_BYTES = 64 << 20
MAX_PATIENCE = 60.0
MAX_FREEZE = 3600.0
MAX_REASON = 1000

Data = dict[str, Any]


class ParameterService(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, state: ServerState) -> None:
        config = state.config
        self._state, self._saving = state, Saving(state)
        self._actions: dict[str, Callable[[Data], Data | None]] = {
            "ping": lambda data: {"server": state.server_id},
            "register": self._register,
            "ended": self._ended,
            "heartbeat": self._heartbeat,
            "leave": self._leave,
            "join": self._join,
            "stop": self._stop,
            "create_table": self._create_table,
            "meet": self._meet,
            "freeze": self._freeze,
            "renew": self._renew,
            "advance": self._advance,
            "thaw": lambda data: state.gate.thaw(need_text(data, "owner")),
            "write": self._write,
            "saved": self._saved,
            "attend": lambda data: state.cuts.attend(*_identity(data), _patience(data)),
            "depart": lambda data: state.cuts.depart(*_identity(data), data.get("report"), _patience(data)),
            "open_cut": lambda data: state.cuts.open(*_identity(data)),
            "ask_all": lambda data: state.cuts.ask(need_text(data, "cut"), need_text(data, "phase"), _patience(data)),
            "watch_cuts": self._watch_cuts,
            "answer_cut": self._answer_cut,
            "close_cut": lambda data: state.cuts.close(need_text(data, "cut")),
            "load": self._load,
            "stats": lambda data: state.stats(),
        }
        scheme = "grpc+tls" if config.tls_certificate else "grpc"
        super().__init__(
            f"{scheme}://{config.host}:{config.port}",
            tls_certificates=[(config.tls_certificate, config.tls_key)] if config.tls_certificate else None,
            middleware={"token": CheckToken(config.token)} if config.token else None,
        )

    # --- what Flight calls

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            hello = _checked_protocol(read_json(bytes(descriptor.command or b""), "the opening of a stream"))
            lane = self._state.lane(*_identity(hello), _integer(hello, "lane"))
            segment = accepted(hello.get("segment"))
        except SparseFleetError as error:
            metadata, _ = encode({"error": str(error), "server": self._state.server_id})
            writer.write_metadata(metadata)
            return
        Exchange(self._state, lane, writer, segment).run(reader)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        return [to_json(self._answer(action))]

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(name, "") for name in self._actions]

    def _answer(self, action: Any) -> Data:
        try:
            act = self._actions.get(action.type)
            if act is None:
                raise WireError(f"action {action.type!r} does not exist; there are {', '.join(self._actions)}")
            body = action.body.to_pybytes() if action.body is not None else b""
            data = _checked_protocol(read_json(body, f"action {action.type}", MAX_ACTION_BYTES))
            return act(data) or {}
        except (SparseFleetError, OverflowError) as error:
            return refusal(error)
        except Exception as error:
            log.exception("action %s failed", action.type)
            return {"error": f"the server failed: {error!r}; its log says where"}

    # --- actions

    def _register(self, data: Data) -> Data:
        servers = data.get("servers")
        if not isinstance(servers, list) or not all(isinstance(one, str) for one in servers):
            raise WireError(f"servers must be a list of host:port; got {servers!r}")
        worker, incarnation = _identity(data)
        mode = data.get("mode")
        joining = Registration(
            worker,
            _integer(data, "workers"),
            tuple(servers),
            _integer(data, "index"),
            about=str(data.get("about", ""))[:200],
            mode=None if mode is None else str(mode)[:200],
        )
        self._state.sessions.register(incarnation, joining)
        return {"server": self._state.server_id, "last_checkpoint": self._state.last_checkpoint}

    def _heartbeat(self, data: Data) -> Data:
        status = data.get("status")
        self._state.sessions.heartbeat(*_identity(data), status if isinstance(status, dict) else {})
        with self._state.sessions.changed:
            first = self._state.sessions.first()
        return {"last_checkpoint": self._state.last_checkpoint, "first": first}

    def _ended(self, data: Data) -> Data:
        how, failed = need_text(data, "how")[:MAX_REASON], data.get("failed") is True
        return {"goes_on": self._state.sessions.ended(_integer(data, "worker"), how, failed)}

    def _leave(self, data: Data) -> None:
        worker, incarnation = _identity(data)
        for_good, failure = data.get("for_good") is True, data.get("failed")
        if isinstance(failure, str):
            own_error, no_error = data.get("own_error") is True, data.get("no_error") is True
            self._state.sessions.fail(worker, incarnation, failure[:MAX_REASON], own_error=own_error, no_error=no_error)
        else:
            self._state.sessions.leave(worker, incarnation, for_good)
        if for_good:
            self._state.geo.forget(worker)

    def _join(self, data: Data) -> None:
        self._state.sessions.join(*_identity(data))

    def _stop(self, data: Data) -> None:
        self._state.sessions.stop(*_identity(data))

    def _create_table(self, data: Data) -> Data:
        spec = data.get("spec")
        if not isinstance(spec, dict):
            raise WireError(f"spec must describe a table; got {spec!r}")
        return self._saving.create_table(spec_from_dict(spec), _patience(data))

    def _meet(self, data: Data) -> Data:
        bounded = data.get("bounded") is True
        return self._state.meetings.meet(
            read_place(data), *_identity(data), data.get("payload"), _patience(data), bounded
        )

    def _freeze(self, data: Data) -> Data:
        return self._saving.freeze(need_text(data, "owner"), need_seconds(data, "seconds", MAX_FREEZE))

    def _renew(self, data: Data) -> None:
        self._state.gate.renew(need_text(data, "owner"), need_seconds(data, "seconds", MAX_FREEZE))

    def _advance(self, data: Data) -> Data:
        lanes = data.get("lanes")
        if not isinstance(lanes, dict) or not all(type(number) is int for number in lanes.values()):
            raise WireError(f"lanes must say numbers by lane; got {lanes!r}")
        return self._saving.advance(need_text(data, "owner"), lanes, need_seconds(data, "patience", MAX_FREEZE))

    def _write(self, data: Data) -> Data:
        patience = _patience(data)
        drop_state = data.get("drop_state") is True
        return self._saving.write(need_text(data, "owner"), need_text(data, "directory"), drop_state, patience)

    def _saved(self, data: Data) -> None:
        self._state.last_checkpoint = need_text(data, "path")

    def _watch_cuts(self, data: Data) -> Data:
        served = (data.get("cut"), data.get("phase"))
        answer = self._state.cuts.watch(*_identity(data), served, _patience(data))
        return answer and {**answer, "last_checkpoint": self._state.last_checkpoint}

    def _answer_cut(self, data: Data) -> None:
        asked = (need_text(data, "cut"), need_text(data, "phase"))
        self._state.cuts.answer(*_identity(data), asked, data.get("report"), data.get("failure"))

    def _load(self, data: Data) -> Data:
        patience = _patience(data)
        values_only = data.get("values_only") is True
        return self._saving.load(need_text(data, "ticket"), need_text(data, "path"), values_only, patience)


def _checked_protocol(data: Data) -> Data:
    if data.get("protocol") != PROTOCOL:
        raise StoreError(
            f"protocol {data.get('protocol')!r} came; this server speaks {PROTOCOL}: use one SparseFleet everywhere"
        )
    return data


def _patience(data: Data) -> float:
    """How long the caller would have us wait before we answer that there is nothing yet."""
    return need_seconds(data, "patience", MAX_PATIENCE)


def _integer(data: Data, name: str) -> int:
    value = data.get(name)
    if type(value) is not int:
        raise WireError(f"{name} must be a whole number; got {value!r}")
    return value


def _identity(data: Data) -> tuple[int, str]:
    incarnation = data.get("incarnation")
    if not isinstance(incarnation, str) or not 0 < len(incarnation) <= 64:
        raise WireError(f"incarnation must be text of 1 to 64 characters; got {incarnation!r}")
    return _integer(data, "worker"), incarnation
