"""The Flight service: streams become `Exchange`s, actions are looked up by name. Whatever comes, it goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.flight as flight

from sparsefleet.core.errors import CheckpointError, Rejoin, SparseFleetError, StoreError
from sparsefleet.server.exchange import Exchange
from sparsefleet.server.leases import text_of
from sparsefleet.server.meetings import read_place
from sparsefleet.server.members import Registration
from sparsefleet.server.scale_request import ScaleRequest
from sparsefleet.server.state import ServerState
from sparsefleet.store.wire import PROTOCOL, WireError, encode, read_json, refusal, spec_from_dict, to_json
from sparsefleet.store.wire.auth import CheckToken
from sparsefleet.store.wire.segment import accepted

log = logging.getLogger(__name__)

MAX_ACTION_BYTES = 64 << 20
MAX_PATIENCE = 60.0
MAX_FREEZE = 3600.0
"""Clients ask for no more, however long their time-out is."""
MAX_REASON = 1000
MAX_SERVERS = 10_000

Data = dict[str, Any]


class ParameterService(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, state: ServerState) -> None:
        config = state.config
        self.state = state
        """Of the present attempt."""
        self._came_to = threading.local()
        self._beginning = threading.Lock()
        self._actions: dict[str, Callable[[Data], Data | None]] = {
            "ping": lambda data: {"server": self._state.server_id, "broken": self._state.sessions.broken},
            "look": self._look,
            "begin_attempt": self._begin_attempt,
            "want_attempt": self._want_attempt,
            "scale": self._scale,
            "scale_step": self._scale_step,
            "retire": self._retire,
            "not_coming": self._not_coming,
            "note_stopped": lambda data: self._state.sessions.note_stopped(_integer(data, "worker")),
            "register": self._register,
            "ended": self._ended,
            "server_failed": self._server_failed,
            "heartbeat": self._heartbeat,
            "leave": self._leave,
            "join": self._join,
            "stop": self._stop,
            "create_table": self._create_table,
            "meet": self._meet,
            "freeze": self._freeze,
            "renew": self._renew,
            "advance": self._advance,
            "name_cut": self._name_cut,
            "thaw": self._thaw,
            "write": self._write,
            "drop_cut": self._drop_cut,
            "saved": self._saved,
            "attend": lambda data: self._state.joint_cuts.attend(*_identity(data), _patience(data)),
            "depart": lambda data: self._state.joint_cuts.depart(*_identity(data), data.get("report"), _patience(data)),
            "open_cut": lambda data: self._state.joint_cuts.open(*_identity(data)),
            "ask_all": self._ask_all,
            "watch_cuts": self._watch_cuts,
            "answer_cut": self._answer_cut,
            "close_cut": lambda data: self._state.joint_cuts.close(need_text(data, "cut")),
            "lease_open": self._lease_open,
            "lease_take": lambda data: self._state.leases.take(*_identity(data), text_of(data, "name")),
            "lease_note": lambda data: self._state.leases.note(
                *_identity(data), text_of(data, "name"), data.get("progress")
            ),
            "lease_lap": lambda data: self._state.leases.end_lap(
                *_identity(data), text_of(data, "name"), _integer(data, "lap")
            ),
            "lease_state": lambda data: self._state.leases.state(),
            "lease_held": lambda data: {"held": self._state.leases.held_by(_integer(data, "worker"))},
            "begin_run": lambda data: self._state.leases.begin_run(*_identity(data), data.get("leased") is True),
            "give_number": lambda data: {"worker": self._state.sessions.give_number(need_text(data, "incarnation"))},
            "enter": lambda data: self._state.leases.enter(*_identity(data), _patience(data)),
            "let_in": lambda data: self._state.sessions.let_all_in(*_identity(data)),
            "scale_workers": lambda data: self._state.sessions.scale(_integer(data, "workers")),
            "load": self._load,
            "lower_rates": self._lower_rates,
            "stats": lambda data: self._state.stats(),
        }
        scheme = "grpc+tls" if config.tls_certificate else "grpc"
        super().__init__(
            f"{scheme}://{config.host}:{config.port}",
            tls_certificates=[(config.tls_certificate, config.tls_key)] if config.tls_certificate else None,
            middleware={"token": CheckToken(config.token)} if config.token else None,
        )

    @property
    def _state(self) -> ServerState:
        """Of the attempt that the action at work in this thread came to: a new one may begin meanwhile."""
        return getattr(self._came_to, "state", None) or self.state

    # --- what Flight calls

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        state = self.state
        try:
            hello = _checked_protocol(read_json(bytes(descriptor.command or b""), "the opening of a stream"))
            account = state.account(*_identity(hello), _integer(hello, "lane"))
            segment = accepted(hello.get("segment"))
        except SparseFleetError as error:
            rejoin = {"kind": "rejoin"} if isinstance(error, Rejoin) else {}
            metadata, _ = encode({"error": str(error), "server": state.server_id, **rejoin})
            writer.write_metadata(metadata)
            return
        Exchange(state, account, writer, segment).run(reader)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        return [to_json(self._answer(action))]

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(name, "") for name in self._actions]

    def _answer(self, action: Any) -> Data:
        self._came_to.state = self.state
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
        finally:
            self._came_to.state = None

    # --- attempts

    def _look(self, data: Data) -> Data:
        """For who starts processes again, and for trainers that are about to join."""
        state = self._state
        return {
            "attempt": state.attempt,
            "broken": state.sessions.broken,
            "wanted": state.wanted,
            "members": state.sessions.members(),
            "silent": state.sessions.silent(),
            "stopped": state.sessions.stopped(),
            "retired": state.sessions.retired(),
            "joining": state.sessions.joining(),
            "awaited": state.sessions.awaited(),
            "overdue": state.sessions.overdue(),
            "furthest_fit": state.sessions.furthest_fit(),
            "left": state.sessions.left(),
            "trained": state.ledger.has_steps(),
            "leased": bool(state.sessions.leased) and state.sessions.mode != "geo",
            "shares": state.sessions.leased is False,
            "fits_ended": state.sessions.fits_ended,
            "timeout": state.config.timeout,
            "bad_cut": state.holdings.unreadable,
            "servers": None if state.config.endpoints is None else list(state.config.endpoints),
            "scale": None if state.scale is None else state.scale.to_dict(),
            "scaled_to": state.sessions.scaled_to(),
        }

    def _begin_attempt(self, data: Data) -> Data:
        """Forget everything, and begin anew from a cut; told again, or of an attempt that is over, do nothing.

        Answers with `bad_cut` where the cut cannot be opened here; nothing has happened then.
        """
        attempt, cut, why = _integer(data, "attempt"), data.get("cut"), need_text(data, "why")[:MAX_REASON]
        with self._beginning:
            old = self.state
            if old.attempt is None:
                raise StoreError("this server was started for a job that does not heal: it knows of no attempts")
            if attempt <= old.attempt:
                return {}
            stopped, crew = _workers(data, "stopped"), _workers(data, "crew")
            cut = None if cut is None else need_text(data, "cut")
            servers = old.config.endpoints if data.get("servers") is None else _endpoints(data)
            config = replace(
                old.config,
                attempt=attempt,
                cut=cut,
                stopped=stopped or (),
                crew=crew,
                begun_because=why,
                endpoints=servers,
            )
            try:
                self.state = ServerState(config, old.after_apply)
            except CheckpointError as error:
                return {"bad_cut": str(error)}
            old.end_attempt(f"attempt {attempt} of the job has begun: {why}")
            log.warning("attempt %d begins from %s: %s", attempt, config.start or "nothing", why)
            return {}

    def _want_attempt(self, data: Data) -> None:
        """A trainer cannot go on in this attempt."""
        if _integer(data, "attempt") == self._state.attempt:
            self._state.wanted = self._state.wanted or need_text(data, "why")[:MAX_REASON]

    # --- another number of servers

    def _scale(self, data: Data) -> Data:
        """Somebody wants the job to go on with so many servers: note it for the trainers and for the launcher."""
        state, servers = self._state, _integer(data, "servers")
        if state.attempt is None:
            raise StoreError(
                "this job cannot change its number of servers: it was started without --restarts, so nobody takes cuts "
                "of it, and nobody would start or stop servers. Save a checkpoint and resume it with another number: "
                "checkpoints load on any number of servers"
            )
        if not 1 <= servers <= MAX_SERVERS:
            raise StoreError(f"servers={servers} must be 1 to {MAX_SERVERS}")
        if servers == state.sessions.servers:
            raise StoreError(f"the job has {servers} servers already")
        if state.scale is not None and state.scale.error is None:
            raise StoreError(f"the job is about to go on with {state.scale.servers} servers: wait for that")
        state.scale = ScaleRequest(servers)
        log.warning("the job is to go on with %d servers: waiting for a cut", servers)
        return {"attempt": state.attempt, "ticket": state.scale.ticket}

    def _scale_step(self, data: Data) -> None:
        """How the change gets on: its cut is written, or it cannot be."""
        scale = self._state.scale
        if scale is None or scale.ticket != need_text(data, "ticket"):
            return  # of an attempt that is over
        if (error := data.get("error")) is not None:
            scale.error = str(error)[:MAX_REASON]
        else:
            scale.cut = need_text(data, "cut")

    def _retire(self, data: Data) -> Data:
        """The others go on without a trainer that was lost; `whole`: and all servers had the same of its steps."""
        state = self._in_attempt(data)
        if data.get("whole") is True:
            state.retired_whole(_integer(data, "worker"))
            return {}
        return state.retire(_integer(data, "worker"))

    def _not_coming(self, data: Data) -> None:
        """A trainer that this attempt's crew lists had left the job when the attempt began."""
        self._in_attempt(data).sessions.note_not_coming(_integer(data, "worker"))

    def _in_attempt(self, data: Data) -> ServerState:
        state = self._state
        if _integer(data, "attempt") != state.attempt:
            raise StoreError(f"this server is in attempt {state.attempt} of the job, not in {data['attempt']}")
        return state

    # --- actions

    def _register(self, data: Data) -> Data:
        servers = _endpoints(data)
        worker, incarnation = _identity(data)
        mode = data.get("mode")
        joining = Registration(
            worker,
            _integer(data, "workers"),
            servers,
            _integer(data, "index"),
            about=str(data.get("about", ""))[:200],
            mode=None if mode is None else str(mode)[:200],
            attempt=None if data.get("attempt") is None else _integer(data, "attempt"),
            fits=0 if data.get("fits") is None else _integer(data, "fits"),
        )
        state = self._state
        state.sessions.register(incarnation, joining)
        return {
            "server": state.server_id,
            "last_checkpoint": state.last_checkpoint,
            "cut": state.config.cut,
            "late": state.sessions.comes_late(worker),
        }

    def _heartbeat(self, data: Data) -> Data:
        status = data.get("status")
        self._state.sessions.heartbeat(*_identity(data), status if isinstance(status, dict) else {})
        with self._state.sessions.changed:
            first = self._state.sessions.first()
        scale = self._state.scale
        wanted = None if scale is None or scale.cut or scale.error else scale.ticket
        return {"last_checkpoint": self._state.last_checkpoint, "first": first, "cut_wanted": wanted}

    def _ended(self, data: Data) -> Data:
        how, failed = need_text(data, "how")[:MAX_REASON], data.get("failed") is True
        return {"goes_on": self._state.sessions.ended(_integer(data, "worker"), how, failed)}

    def _server_failed(self, data: Data) -> None:
        index, reason = _integer(data, "index"), need_text(data, "reason")[:MAX_REASON]
        # Trainers begin only once they are registered with all servers: where tables are, that one has been up.
        if not self._state.holdings.tables() and not self._state.holdings.blocks():
            with self._state.sessions.changed:
                self._state.sessions.break_job(f"server {index} did not start: {reason}")

    def _leave(self, data: Data) -> None:
        worker, incarnation = _identity(data)
        for_good, failure = data.get("for_good") is True, data.get("failed")
        if isinstance(failure, str):
            own_error, no_error = data.get("own_error") is True, data.get("no_error") is True
            self._state.sessions.fail(worker, incarnation, failure[:MAX_REASON], own_error=own_error, no_error=no_error)
        else:
            self._state.rounds.leave(worker, incarnation)
            self._state.sessions.leave(worker, incarnation, for_good)
        if for_good:
            self._state.geo.forget(worker)
            self._state.leases.left(worker)

    def _join(self, data: Data) -> None:
        if data.get("late") is True:
            self._state.sessions.let_all_in(*_identity(data))
            self._state.rounds.enter(*_identity(data))
        else:
            self._state.sessions.join(*_identity(data))

    def _stop(self, data: Data) -> None:
        self._state.sessions.stop(*_identity(data))

    def _create_table(self, data: Data) -> Data:
        """Done at once, unless its rows come from the checkpoint that the server starts from."""
        state = self._state
        self._living(data)
        described = data.get("spec")
        if not isinstance(described, dict):
            raise WireError(f"spec must describe a table; got {described!r}")
        spec = spec_from_dict(described)

        def work() -> Data:
            state.holdings.create_table(spec, state.sessions.servers)
            return {}

        return state.tasks.ask(f"table {spec.name!r}", work, _patience(data), key=repr(spec))

    def _meet(self, data: Data) -> Data:
        bounded = data.get("bounded") is True
        return self._state.meetings.meet(
            read_place(data), *_identity(data), data.get("payload"), _patience(data), bounded
        )

    def _freeze(self, data: Data) -> Data:
        owner, ledger, seconds = self._living(data), self._state.ledger, need_seconds(data, "seconds", MAX_FREEZE)
        self._state.sessions.check_job()
        ledger.check_whole()
        ledger.gate.hold(owner, seconds, seconds / 2)
        return {"accounts": ledger.accounts(), "over": ledger.over()}

    def _renew(self, data: Data) -> None:
        """Of the freeze and of the cut, whatever the caller has."""
        owner, seconds = self._living(data), need_seconds(data, "seconds", MAX_FREEZE)
        held = self._state.ledger.gate.renew(owner, seconds)
        if not self._state.cuts.renew(owner, seconds) and not held:
            raise StoreError("there is neither a freeze nor a cut of this trainer any more: save again")

    def _advance(self, data: Data) -> Data:
        owner, ledger, steps = self._living(data), self._state.ledger, data.get("accounts")
        if not isinstance(steps, dict) or not all(type(number) is int for number in steps.values()):
            raise WireError(f"accounts must say numbers of steps by account; got {steps!r}")

        def reached() -> bool:
            applied = ledger.accounts()
            return all(applied.get(key, (0,))[0] >= number for key, number in steps.items())

        ledger.gate.let_through(owner, steps, reached, need_seconds(data, "patience", MAX_FREEZE))
        return {}

    def _name_cut(self, data: Data) -> Data:
        self._state.check_no_doubt()
        return self._state.cuts.name(self._living(data), need_seconds(data, "seconds", MAX_FREEZE))

    def _thaw(self, data: Data) -> None:
        self._state.ledger.gate.open(self._living(data))

    def _write(self, data: Data) -> Data:
        cuts, owner = self._state.cuts, self._living(data)
        directory, drop_state = need_text(data, "directory"), data.get("drop_state") is True
        since = need_text(data, "since") if "since" in data else None
        cuts.check(owner)
        return self._state.tasks.ask(
            f"write to {directory}",
            lambda: cuts.write(owner, directory, drop_state, since),
            _patience(data),
            key=f"write {owner} {directory}",
        )

    def _drop_cut(self, data: Data) -> None:
        self._state.cuts.drop(self._living(data))

    def _saved(self, data: Data) -> None:
        owner, path = self._living(data), need_text(data, "path")
        self._state.cuts.committed(owner, need_text(data, "directory"), path)
        self._state.last_checkpoint = path

    def _ask_all(self, data: Data) -> Data:
        return self._state.joint_cuts.ask(need_text(data, "cut"), need_text(data, "phase"), _patience(data))

    def _watch_cuts(self, data: Data) -> Data:
        served = (data.get("cut"), data.get("phase"))
        answer = self._state.joint_cuts.watch(*_identity(data), served, _patience(data))
        return answer and {**answer, "last_checkpoint": self._state.last_checkpoint}

    def _answer_cut(self, data: Data) -> None:
        asked = (need_text(data, "cut"), need_text(data, "phase"))
        self._state.joint_cuts.answer(*_identity(data), asked, data.get("report"), data.get("failure"))

    def _lease_open(self, data: Data) -> Data:
        name, plan, pieces = text_of(data, "name"), text_of(data, "plan"), _integer(data, "pieces")
        position = data.get("position")
        if position is not None and not isinstance(position, dict):
            raise WireError(f"position must say what is read; got {position!r:.80}")
        told = data.get("told", {})
        if not isinstance(told, dict):
            raise WireError(f"told must be an object; got {told!r:.80}")
        return self._state.leases.open(*_identity(data), name, plan, pieces, data.get("progress", []), position, told)

    def _load(self, data: Data) -> Data:
        state, owner, path = self._state, self._living(data), need_text(data, "path")
        values_only, partial = data.get("values_only") is True, data.get("partial") is True

        def work() -> Data:
            state.holdings.load(path, state.sessions.servers, values_only, owner, state.config.timeout, partial=partial)
            state.last_checkpoint = path
            return {}

        return state.tasks.ask(f"load of {path}", work, _patience(data), key=need_text(data, "ticket"))

    def _lower_rates(self, data: Data) -> None:
        self._living(data)
        factor = data.get("factor")
        if type(factor) not in (int, float) or not 0 < float(factor or 0) <= 1:
            raise WireError(f"factor must be above 0 and at most 1; got {factor!r}")
        self._state.holdings.lower_rates(float(factor or 0))

    def _living(self, data: Data) -> str:
        """The life of the registered trainer that calls: what it freezes, cuts or loads is in its name."""
        worker, incarnation = _identity(data)
        with self._state.sessions.changed:
            self._state.sessions.check(worker, incarnation)
        return incarnation


def _checked_protocol(data: Data) -> Data:
    if data.get("protocol") != PROTOCOL:
        raise StoreError(
            f"protocol {data.get('protocol')!r} came; this server speaks {PROTOCOL}: use one SparseFleet everywhere"
        )
    return data


def need_text(data: Data, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise StoreError(f"{name} must be text; got {value!r}")
    return value


def need_seconds(data: Data, name: str, most: float) -> float:
    value = data.get(name)
    if type(value) not in (int, float) or not 0 <= float(value or 0) <= most:
        raise StoreError(f"{name} must be 0 to {most:g} seconds; got {value!r}")
    return float(value or 0)


def _patience(data: Data) -> float:
    """How long the caller would have us wait before we answer that there is nothing yet."""
    return need_seconds(data, "patience", MAX_PATIENCE)


def _integer(data: Data, name: str) -> int:
    value = data.get(name)
    if type(value) is not int:
        raise WireError(f"{name} must be a whole number; got {value!r}")
    return value


def _workers(data: Data, name: str) -> tuple[int, ...] | None:
    """A list of trainers' numbers; None where there is none."""
    workers = data.get(name)
    if workers is None:
        return None
    if not isinstance(workers, list) or not all(type(worker) is int for worker in workers):
        raise WireError(f"{name} must list workers; got {workers!r}")
    return tuple(workers)


def _endpoints(data: Data) -> tuple[str, ...]:
    servers = data.get("servers")
    if not isinstance(servers, list) or not all(isinstance(one, str) for one in servers):
        raise WireError(f"servers must be a list of host:port; got {servers!r}")
    return tuple(servers)


def _identity(data: Data) -> tuple[int, str]:
    incarnation = data.get("incarnation")
    if not isinstance(incarnation, str) or not 0 < len(incarnation) <= 64:
        raise WireError(f"incarnation must be text of 1 to 64 characters; got {incarnation!r}")
    return _integer(data, "worker"), incarnation
