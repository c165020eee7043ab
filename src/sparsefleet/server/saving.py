"""A server's part in saving and loading: jobs that take long run in a thread of their own, and are asked about."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sparsefleet.checkpoint import TableInfo, locate
from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.server.state import ServerState
from sparsefleet.store.saving import write_shards
from sparsefleet.store.wire import refusal
from sparsefleet.table.spec import TableSpec

log = logging.getLogger(__name__)


TELL_EVERY = 5.0


class Job:
    def __init__(self, work: Callable[[], dict[str, Any]]) -> None:
        self._work = work
        self._started = self._told = time.monotonic()
        self._answer: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="sparsefleet-job", daemon=True)
        self._thread.start()

    def wait(self, patience: float) -> dict[str, Any] | None:
        """The answer, or None while the job is at work."""
        self._thread.join(patience)
        return None if self._thread.is_alive() else self._answer

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def untold(self) -> bool:
        """Whether it is time to say again that the job is at work, however many ask."""
        due = time.monotonic() - self._told >= TELL_EVERY
        if due:
            self._told = time.monotonic()
        return due

    def _run(self) -> None:
        try:
            self._answer = self._work()
        except SparseFleetError as error:
            self._answer = refusal(error)
        except Exception as error:
            log.exception("a job failed")
            self._answer = {"error": f"the server failed: {error!r}; its log says where"}


class Saving:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def freeze(self, owner: str, seconds: float) -> dict[str, Any]:
        state = self._state
        state.sessions.check_job()
        state.gate.freeze(owner, seconds, seconds / 2)
        return {"lanes": state.applied(), "over": state.over(), "losses": state.sessions.had_losses}

    def advance(self, owner: str, lanes: dict[str, int], patience: float) -> dict[str, Any]:
        def reached() -> bool:
            applied = self._state.applied()
            return all(applied.get(lane, 0) >= number for lane, number in lanes.items())

        self._state.gate.advance(owner, lanes, reached, patience)
        return {}

    def write(self, owner: str, directory: str, drop_state: bool, patience: float) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            holdings = self._state.holdings
            tables, blocks = holdings.tables(), holdings.blocks()
            shard = self._state.config.index
            files = write_shards(locate(directory), shard, tables, blocks, drop_state=drop_state)
            self._state.gate.check(owner)
            infos = [
                TableInfo.of(table.spec, table.step, drop_state=drop_state) for table in sorted(tables, key=_table_name)
            ]
            return {
                "files": [entry.to_dict() for entry in files],
                "tables": [asdict(info) for info in infos],
                "blocks": [
                    block.info(drop_state).to_dict() for block in sorted(blocks, key=lambda held: held.table.name)
                ],
            }

        self._state.gate.check(owner)
        return self._job(f"write to {directory}", work, patience, key=f"write {owner} {directory}")

    def create_table(self, spec: TableSpec, patience: float) -> dict[str, Any]:
        """Done at once, unless its rows come from the checkpoint that the server starts from."""

        def work() -> dict[str, Any]:
            self._state.holdings.create_table(spec, self._state.sessions.servers)
            return {}

        return self._job(f"table {spec.name!r}", work, patience, key=repr(spec))

    def load(self, ticket: str, path: str, values_only: bool, patience: float) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            gate, owner = self._state.gate, f"load {ticket}"
            gate.freeze(owner, 3600.0, self._state.config.timeout)
            try:
                self._state.holdings.load(path, self._state.sessions.servers, values_only)
            finally:
                gate.thaw(owner)
            self._state.last_checkpoint = path
            return {}

        return self._job(f"load of {path}", work, patience, key=ticket)

    def _job(self, what: str, work: Callable[[], dict[str, Any]], patience: float, *, key: str) -> dict[str, Any]:
        """Start the job of this key unless it runs, and wait a while for its end; `busy` while it is at work."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(work)
        answer = job.wait(patience)
        if answer is None:
            rows = self._state.holdings.rows()
            if job.untold():
                log.info("%s: at work for %.0f s; %s rows are here", what, job.seconds, f"{rows:,}")
            return {"busy": True, "rows": rows}
        with self._lock:
            self._jobs.pop(key, None)
        return answer


def _table_name(table: Any) -> str:
    return str(table.spec.name)


def need_text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise StoreError(f"{name} must be text; got {value!r}")
    return value


def need_seconds(data: dict[str, Any], name: str, most: float) -> float:
    value = data.get(name)
    if type(value) not in (int, float) or not 0 <= float(value or 0) <= most:
        raise StoreError(f"{name} must be 0 to {most:g} seconds; got {value!r}")
    return float(value or 0)
