"""Saver: names cuts of a run, and writes them as checkpoints while training goes on.

Naming a cut takes milliseconds: threads stand between two steps, every trainer says where it stands, the store marks
the moment. Writing it takes as long as it takes, in a thread of its own. There is one cut at a time: who wants to save
while another checkpoint is being written waits for it.

A save of the run's policy that fails is nobody's death: it is told, the last checkpoint stands, training goes on. Only
several in a row end the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparsefleet.checkpoint import Chain, Manifest, locate, point_latest, prune, step_path
from sparsefleet.core.errors import CheckpointError, SparseFleetError
from sparsefleet.crew import Crew, Reports
from sparsefleet.store.base import ParameterStore, RunFacts, StoreCut
from sparsefleet.train.cut_member import RunCutMember
from sparsefleet.train.save_policy import SavePolicy

logger = logging.getLogger("sparsefleet.train")

SLOW_WAIT = 1.0
"""Who waits longer than that for the save before is told that saves come faster than they can be written."""


@dataclass(frozen=True)
class _Named:
    """A cut that is still to be written."""

    cut: StoreCut
    facts: RunFacts
    report: object
    """Where this process stood."""


class Saver:
    def __init__(
        self,
        store: ParameterStore,
        crew: Crew,
        member: RunCutMember,
        facts: Callable[[Reports], RunFacts],
        policy: SavePolicy | None,
        saved: Callable[[str, int], None],
    ) -> None:
        """`facts`: what a checkpoint should know of the run, from where all trainers stand.

        `saved` is called with path and step of each checkpoint of the policy, from any thread.
        """
        self._store, self._crew, self._member, self._facts = store, crew, member, facts
        self._policy, self._saved = policy, saved
        self._cut_open = threading.Lock()
        """Held from before a cut is named until it is written; then by the thread that writes it."""
        self._failures: list[Exception] = []
        """Of the saves since the last one that went well."""
        self._told_slow = False
        self._last: object = None
        """Where this process stood at its last checkpoint."""
        self.checkpoint: str | None = None
        """The last one that was written by the policy."""

    def save_to(self, path: str, *, drop_state: bool = False) -> None:
        """A checkpoint of this moment at `path`; returns when it is written, or raises."""
        named = self._name(anyway=True)
        assert named is not None
        self._write(named, path, drop_state=drop_state)

    def save(self, *, wait: bool = False) -> None:
        """A checkpoint of this moment, by the policy. From any thread; one of training only at the end of its step.

        wait: until it is written; else it is written in the background.
        """
        policy = self._policy
        assert policy is not None
        self.check()
        try:
            named = self._name()
        except Exception as error:
            self._failed(error)
            return
        if named is None:
            return
        if wait:
            self._write_planned(named, policy)
        else:
            _in_background(lambda: self._write_planned(named, policy), "sparsefleet-save")

    def aside(
        self,
        path_of: Callable[[RunFacts], str],
        keep: int,
        ended: Callable[[Manifest | Exception], None],
        *,
        chain: Chain,
        wait: bool,
    ) -> None:
        """A checkpoint that is none of the policy's, in a folder that keeps so many. `ended` hears how it went.

        chain: whether it may be a delta, and of which one.
        """
        try:
            named = self._name(anyway=True)
        except Exception as error:
            ended(error)
            return
        assert named is not None

        def write(named: _Named = named) -> None:
            outcome: Manifest | Exception
            try:
                with named.cut:
                    path = path_of(named.facts)
                    outcome = named.cut.write(path, named.facts, since=chain.base_for(path))
                chain.written(path, outcome)
                point_latest(path)
                prune(locate(path).parent, keep)
            except Exception as error:
                outcome = error
            finally:
                self._cut_open.release()
            ended(outcome)

        if wait:
            write()
        else:
            _in_background(write, "sparsefleet-cut")

    def check(self) -> None:
        """Raise where so many saves have failed one after the other that the run should end."""
        failures = list(self._failures)
        if self._policy is not None and len(failures) >= self._policy.failures:
            raise self._error(f"{len(failures)} saves failed one after the other", failures[-1])

    def settle(self) -> None:
        """Return when nothing is being written any more."""
        with self._cut_open:
            pass

    def check_last(self) -> None:
        """Raise if the last save did not go well: the run is at its end, there will be no other."""
        self.settle()
        if self._failures:
            raise self._error("training came to its end, but its last save failed", self._failures[-1])

    def _error(self, what: str, error: Exception) -> CheckpointError:
        stands = f"the last checkpoint is {self.checkpoint}" if self.checkpoint else "no checkpoint was saved"
        wrong = CheckpointError(f"{what}: {error}. Mend that and resume; {stands}")
        wrong.__cause__ = error
        return wrong

    def _name(self, *, anyway: bool = False) -> _Named | None:
        """Name a cut. anyway: also where nothing is new since the last one."""

        def act(reports: Reports) -> _Named | None:
            mine = reports[self._crew.index]
            if not anyway and self._crew.size == 1 and mine == self._last:
                return None
            facts = self._facts(reports)
            return _Named(self._store.cut(), facts, mine)

        with self._member.gate.aside():
            self._wait_for_the_save_before()
            try:
                named = self._crew.at_one_moment(self._member, self._store.hold(), act)
            except BaseException:
                self._cut_open.release()
                raise
        if named is None:
            self._cut_open.release()
        return named

    def _wait_for_the_save_before(self) -> None:
        since = time.monotonic()
        self._cut_open.acquire()
        waited = time.monotonic() - since
        if waited > SLOW_WAIT and not self._told_slow:
            self._told_slow = True
            logger.warning("training waited %.1f s for the checkpoint before: save less often", waited)

    def _write(self, named: _Named, path: str, *, drop_state: bool = False) -> None:
        try:
            with named.cut:
                named.cut.write(path, named.facts, drop_state=drop_state)
        finally:
            self._cut_open.release()

    def _write_planned(self, named: _Named, policy: SavePolicy) -> None:
        try:
            path = str(step_path(policy.folder, named.facts.step))
            with named.cut:
                named.cut.write(path, named.facts)
            point_latest(path)
            prune(policy.folder, policy.keep)
            self._failures.clear()
            self._last, self.checkpoint = named.report, path
            self._saved(path, named.facts.step)
        except Exception as error:
            self._failed(error)
        finally:
            self._cut_open.release()

    def _failed(self, error: Exception) -> None:
        self._failures.append(error)
        stands = f"{self.checkpoint} stands" if self.checkpoint else "there is none yet"
        logger.warning("a checkpoint was not written, training goes on (%s): %s", stands, error)
        if not isinstance(error, SparseFleetError | OSError):
            logger.debug("saving failed", exc_info=error)


def _in_background(write: Callable[[], None], name: str) -> None:
    """In a thread of its own; here, where the system gives none: nobody else would close the cut."""
    thread = threading.Thread(target=write, name=name, daemon=True)  # a second Ctrl-C ends the process all the same
    try:
        thread.start()
    except RuntimeError:
        write()
