"""Attempts: the lives of a job that heals. When a process is lost, a new one begins from the last cut.

Who starts processes (`launch/healing_job.py`) says when; here is which attempt it is, what it begins from, and that all
servers hear of it. A thread for each server looks at it again and again: a server that is in an earlier attempt is told
of the present one, whatever became of earlier words to it. Trainers hear of it from the servers, in whatever call they
are in.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparsefleet.checkpoint import AnyPath, Checkpoint, loadable, locate
from sparsefleet.checkpoint.storage.base import reading, writing
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.fleet.healing import HealingVariables, attempt_of
from sparsefleet.fleet.security import Security
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

LOOK_EVERY = 0.2
LOOK_SECONDS = 2.0
"""How long one server may take over one answer."""
BEGIN_SECONDS = 30.0
ASK_SECONDS = 0.5
"""How long the launcher itself stands still for an answer."""
SAME_PLACE = 3
PLACES = 3
"""Of leased data, so many pieces are told of: a worker takes some ahead, and reads the first ones first."""
Piece = tuple[str, int]
"""Of leased data: its file, and where in it it begins."""
RETIRE_SECONDS = 2.0
"""How long a lost worker's part of a sync round may wait for the others' parts."""
TIME_OUT = 60.0
"""Of a job whose servers have not said theirs yet."""
JOIN_SECONDS = 60.0
"""How long, at the least, a living worker may take to come to a new attempt: it may be within its script's own work."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a job that loses processes goes on by itself."""

    restarts: int = 0
    """Losses that it survives within `within` seconds; one more ends it. 0: the first one ends it, and there are no
    cuts."""
    within: float = 3600.0
    cut_every: float | None = None
    """Seconds between two cuts; None: so that they take about 1 % of the time (`train/job_cuts.py`)."""
    cuts: str | None = None
    """Where they go: a folder, or a URI (s3://… and the like), in which the job makes a folder of its own. Every
    process must see it. None: the folder of logs."""

    def __post_init__(self) -> None:
        if self.restarts < 0:
            raise ConfigError(f"restarts={self.restarts} must be 0 or above")
        if not self.within > 0:
            raise ConfigError(f"within={self.within} must be above 0 seconds")
        if self.cut_every is not None and not 0 < self.cut_every < float("inf"):
            raise ConfigError(f"cut_every={self.cut_every} must be above 0 seconds")
        if self.cut_every is not None and not self.restarts:
            raise ConfigError("cut_every is for jobs that heal: say how many restarts there may be")
        if self.cuts is not None and not self.restarts:
            raise ConfigError("cuts is for jobs that heal: say how many restarts there may be")


class Attempts:
    def __init__(
        self, endpoints: Sequence[str], environment: Mapping[str, str], policy: RestartPolicy, folder: AnyPath
    ) -> None:
        """folder: for the job's cuts; every process must see it."""
        self._endpoints, self._environment, self._policy = tuple(endpoints), environment, policy
        self.folder = locate(folder)
        self.number = 1
        self.cut: str | None = None
        """What the present attempt begins from; None: from the job's beginning."""
        self._why, self._stopped = "", tuple[int, ...]()
        self._crew: tuple[int, ...] | None = None
        """Of an elastic job, the workers that the present attempt began with; None: as the job began."""
        self.left: set[int] = set()
        """Of an elastic job: numbers of workers that have left it, or that are not started again."""
        self._begun = time.monotonic()
        self._losses: deque[tuple[float, str]] = deque()
        self._answers: dict[int, dict[str, Any]] = {}
        self._killed: dict[int, tuple[str | None, int]] = {}
        """By worker, the cut after which it was killed last, and how often."""
        self._deadly: Counter[Piece] = Counter()
        """By piece of leased data, how often whoever had it was killed."""
        self._furthest: dict[Piece, tuple[int, int]] = {}
        """By such a piece, the most samples of it that were in the model then, and where the next one is."""
        self._told_deadly: set[Piece] = set()
        """Such pieces that were told of, and those beside them."""
        self._heard: dict[int, float] = {}
        """By server that has come up, when it last answered."""
        self.done: set[int] = set()
        """Workers that were killed when they had come to their end: every server is to know it."""
        self._lost_at: float | None = None
        """When the loss was seen that the present attempt heals, until it is healed."""
        self._bad_cuts: dict[str, str] = {}
        """Cuts that a server could not read, and why."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._watched: set[int] = set()
        """Servers that a thread looks at."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The servers of the present attempt."""
        return self._endpoints

    def make_folder(self) -> None:
        """Raises CheckpointError where the place for cuts refuses that."""
        with writing(self.folder):
            self.folder.storage.make_dir(self.folder.path)

    def start(self) -> None:
        self._watch_all()

    def _watch_all(self) -> None:
        with self._lock:
            new = [index for index in range(len(self._endpoints)) if index not in self._watched]
            self._watched.update(new)
        for index in new:
            thread = threading.Thread(target=self._watch, args=(index,), name=f"attempts-server-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(LOOK_SECONDS + 1)

    def remove_cuts(self) -> str | None:
        """Why they cannot be removed; None: they are gone."""
        try:
            self.folder.storage.delete_dir(self.folder.path)
        except OSError as error:
            return str(error)
        return None

    def move(self, endpoints: Sequence[str]) -> None:
        """Servers are about to start again at other addresses, as many of them as before; `begin` comes next."""
        with self._lock:
            self._endpoints = tuple(endpoints)

    def environment(self) -> dict[str, str]:
        """For a process that is started now."""
        every = self._policy.cut_every
        with self._lock:
            told = HealingVariables(str(self.folder), self.number, every, self.cut, self._stopped, self._crew)
        return told.environment()

    # --- losses

    def another(self, why: str) -> str | None:
        """Count one more loss; why the job ends with it, if it does."""
        now = time.monotonic()
        self._losses.append((now, why))
        while now - self._losses[0][0] > self._policy.within:
            self._losses.popleft()
        if len(self._losses) <= self._policy.restarts:
            return None
        causes = "; ".join(f"{now - at:.0f} s ago: {cause}" for at, cause in self._losses)
        return f"{len(self._losses)} losses within {now - self._losses[0][0]:.0f} s, and {self.allowed}: {causes}"

    @property
    def allowed(self) -> str:
        return f"{len(self._losses)} of {self._policy.restarts} restarts are used up"

    def begin(
        self,
        why: str,
        stopped: Iterable[int],
        gone: Iterable[int],
        endpoints: Sequence[str] | None = None,
        crew: Iterable[int] | None = None,
    ) -> None:
        """A new attempt. stopped: trainers that have come to their end; gone: servers that are being started again.

        endpoints: the servers that it has from now on, where those are others. Server 0 stays. crew: of an elastic job,
        the workers that are there or are being started again. All others come late, as to any work that has begun.
        """
        cut = self.newest_cut()
        with self._lock:
            self.number += 1
            self._begun = time.monotonic()
            self.cut, self._why, self._stopped = cut, why, tuple(sorted(stopped))
            self._crew = None if crew is None else tuple(sorted(crew))
            # When the loss was seen: room for what takes its place may have been long in coming.
            seen = self._losses[-1][0] if self._losses and endpoints is None else time.monotonic()
            self._lost_at = self._lost_at or seen
            self._answers.clear()
            for index in gone:
                self._heard.pop(index, None)
            if endpoints is not None:
                before, self._endpoints = self._endpoints, tuple(endpoints)
                for index in range(max(len(before), len(endpoints))):
                    if before[index : index + 1] != self._endpoints[index : index + 1]:
                        self._heard.pop(index, None)
        self._watch_all()

    def goes_on_without(self, worker: int) -> bool:
        """A worker was killed. Whether the others can go on in this attempt, with its data: where that is handed out in
        pieces, and all servers have applied the same of its steps. Nothing of its life is taken any more then."""
        first = self._answers.get(0, {})
        if first.get("attempt") != self.number or not first.get("leased"):
            return False
        applied: list[Any] = []
        try:
            for index in reversed(range(len(self._endpoints))):  # server 0 last: it hands the pieces to others
                link, until = self._link(index), time.monotonic() + RETIRE_SECONDS
                try:
                    request = {"attempt": self.number, "worker": worker}
                    while (answer := link.action("retire", request, LOOK_SECONDS)).get("pending"):
                        if time.monotonic() > until:
                            return False
                        time.sleep(LOOK_EVERY / 4)
                    applied.append(answer["accounts"])
                finally:
                    link.client.close()
            whole = all(accounts == applied[0] for accounts in applied)
            return whole and self._tell_all("retire", {"attempt": self.number, "worker": worker, "whole": True})
        except (SparseFleetError, KeyError):
            return False

    def _tell_all(self, action: str, request: Mapping[str, Any]) -> bool:
        for index in range(len(self._endpoints)):
            link = self._link(index)
            try:
                link.action(action, dict(request), LOOK_SECONDS)
            finally:
                link.client.close()
        return True

    def has_not_come_back(self, worker: int) -> bool:
        """Whether the others have gone on without this worker, and it has not joined them since."""
        return any(worker in answer.get("retired", []) for answer in self._present())

    def waits_to_join(self, worker: int) -> bool:
        """Whether it has come back, and had not been let in when the servers were last heard."""
        return any(worker in answer.get("joining", []) for answer in self._present())

    def has_left_everywhere(self, worker: int) -> bool:
        """Whether it has said good-bye to every server: whatever ends its process then, nothing of it is missing."""
        answers = self._present()
        return len(answers) == len(self._endpoints) and all(worker in answer.get("left", []) for answer in answers)

    def has_left(self, worker: int) -> bool:
        """Whether the last that had this number has left an elastic job."""
        return any(worker in answer.get("left", []) for answer in self._present())

    def newest_cut(self) -> str | None:
        """The newest that can be opened. Once one has turned out to be damaged, others are read to their end first."""
        with contextlib.suppress(SparseFleetError):
            return self._newest_cut()
        return None

    def unreachable(self) -> str | None:
        """Why nobody can tell which cuts there are; None: the place where they are answers."""
        try:
            self._folders()
        except SparseFleetError as error:
            return str(error)
        return None

    def leaves_out(self, done: Iterable[int]) -> str | None:
        """Of data in shares: why an attempt that began now would leave out samples of these workers, which have come to
        their end and do not start again; None: it would not.

        Their last call of `fit` must have ended in the cut. Where the cut at its end could not be written, the newest
        one is from before that, and nobody would train again what is not in it of their shares.
        """
        begun, newest, answers = _call_in(self.cut), _call_in(cut := self.newest_cut()), self._present()
        ended = begun.fit - (not begun.ended) + max((int(answer.get("fits_ended", 0)) for answer in answers), default=0)
        shares = newest.shares or any(answer.get("shares") for answer in answers)
        if not (workers := sorted(done)) or not shares or (newest.fit, newest.ended) >= (ended, True):
            return None
        who = f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"
        return (
            f"{who} had come to the end of the job, with a share of the data of its own, and the cut at the end of fit "
            f"could not be written (worker 0's log says why). A new attempt from {cut or 'the beginning'} would leave "
            "out what is not in it of that share: start the whole job again"
        )

    def _folders(self) -> list[str]:
        """Names of the folders that attempts' cuts are in, newest first."""
        with reading(self.folder):
            names = [entry.name for entry in self.folder.list() if attempt_of(entry.name) >= 0]
        return sorted(names, key=attempt_of, reverse=True)

    def _newest_cut(self) -> str | None:
        for name in self._folders():
            with contextlib.suppress(SparseFleetError, OSError):
                for checkpoint in loadable(self.folder / name):
                    place = str(checkpoint.location)
                    if place not in self._bad_cuts and not (self._bad_cuts and self._damaged(checkpoint)):
                        return place
        return None

    def _damaged(self, checkpoint: Checkpoint) -> bool:
        problem = next(checkpoint.problems(), None)
        if problem is not None:
            self._bad_cuts[str(checkpoint.location)] = str(problem)
        return problem is not None

    def _remove_older_cuts(self) -> None:
        """Of attempts before the one whose cut has been loaded: nobody goes back there."""
        if self.cut is not None:
            kept = attempt_of(locate(self.cut).parent.name)
            with contextlib.suppress(SparseFleetError, OSError):  # they are in nobody's way
                for name in self._folders():
                    if attempt_of(name) < kept:
                        self.folder.storage.delete_dir((self.folder / name).path)

    def held_by(self, worker: int) -> list[tuple[str, int, int, int]]:
        """Of leased data: where the worker reads that was killed just now, before its pieces are handed to others. For
        each of them the file, the samples of it that are in the model, where the next one is, and where the piece
        begins. [] where server 0 cannot say."""
        link: ServerLink | None = None
        with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError):
            try:
                link = self._link(0)
                held = link.action("lease_held", {"worker": worker}, ASK_SECONDS)["held"]
                return [(str(file), int(had), int(offset), int(start)) for file, had, offset, start in held]
            finally:
                if link is not None:
                    link.client.close()
        return []

    def same_place(self, worker: int, held: Sequence[tuple[str, int, int, int]] = ()) -> str | None:
        """A worker was killed. Where its data is, if somebody had to begin there for the third time: perhaps by one
        sample. held: what it had of leased data; another worker had that before, perhaps.

        Cuts go on while it is started again, so its place in the newest one counts, not the cut.
        """
        if held:
            # Pieces count, not marks: how much of a piece is in the model varies from one death to the next, with how
            # its samples fell into batches, while pieces that were only read ahead stand at their beginning each time.
            pieces = [(file, start) for file, _, _, start in held]
            self._deadly.update(pieces)
            for piece, (_, samples, offset, _) in zip(pieces, held, strict=True):
                # What is in the model has killed nobody: the furthest mark is the nearest to what does.
                self._furthest[piece] = max(self._furthest.get(piece, (0, piece[1])), (samples, offset))
            places = [_place(piece[0], *self._furthest[piece]) for piece in pieces if self._deadly[piece] == SAME_PLACE]
            known = self._told_deadly.intersection(pieces)
            if known or not places:
                return None
            self._told_deadly.update(pieces)
            more = f", and {len(places) - PLACES} pieces more" if len(places) > PLACES else ""
            return (
                f"the same place of the data has killed {SAME_PLACE} times, worker {worker} the last: perhaps one of "
                f"the next samples does. It was about to read {', '.join(places[:PLACES])}{more}"
            )
        cut = self.newest_cut()
        begun = _begun_in(cut, worker)
        place = cut if begun is None else repr(begun)
        before, count = self._killed.get(worker, (place, 0))
        count = count + 1 if before == place else 1
        self._killed[worker] = (place, count)
        if count != SAME_PLACE:
            return None
        return (
            f"worker {worker} was killed {count} times at the same place: perhaps by one of the next samples. "
            f"It reads on {place_in(cut, worker)}"
        )

    # --- what the servers say

    @property
    def time_out(self) -> float:
        """Of the job's strategy, as its servers say."""
        with self._lock:
            limits = [float(answer.get("timeout", TIME_OUT)) for answer in self._answers.values()]
        return max(limits, default=TIME_OUT)

    def silent_servers(self) -> list[int]:
        """Servers that have been up and do not answer: they are stopped, or hang."""
        now, limit = time.monotonic(), self.time_out
        with self._lock:
            return [index for index, heard in self._heard.items() if now - heard > limit]

    def silent_workers(self) -> list[int]:
        """Trainers of the present attempt that a server has not heard of for the time-out."""
        return sorted({worker for answer in self._present() for worker in answer.get("silent", [])})

    def look_now(self) -> bool:
        """Hear from every server what it knows at this moment; False where one does not answer."""
        answered = True
        for index in range(len(self._endpoints)):
            link: ServerLink | None = None
            try:
                link = self._link(index)
                answer = link.action("look", {}, ASK_SECONDS)
                with self._lock:
                    self._answers[index], self._heard[index] = answer, time.monotonic()
            except SparseFleetError:
                answered = False
            finally:
                if link is not None:
                    link.client.close()
        return answered

    def has_stopped(self, worker: int) -> bool:
        """Whether a server has heard that this worker needs the servers no more."""
        return any(worker in answer.get("stopped", []) for answer in self._present())

    def joined(self, worker: int) -> bool:
        """Whether this worker may have taken part in the present attempt; then the next one must begin without it."""
        answers = self._present()
        return len(answers) < len(self._endpoints) or any(worker in answer.get("members", []) for answer in answers)

    def missing_workers(self, running: Mapping[int, float]) -> list[int]:
        """Of workers that have run for so many seconds, those that have not come to the present attempt for long.

        To the first one they may come late, where their scripts do much before: it is for the servers to say when that
        is too late. Somebody must, though others may not wait for them: those may have been lost themselves.
        """
        answers = self._present()
        if len(answers) < len(self._endpoints):
            return []
        overdue = {worker for answer in answers for worker in answer.get("overdue", [])}
        limit = max([JOIN_SECONDS, *(2 * float(answer.get("timeout", 0.0)) for answer in answers)])
        begun = time.monotonic() - self._begun
        away = [worker for worker, age in running.items() if min(begun, age) > limit and not self.joined(worker)]
        return [worker for worker in away if self.number > 1 or worker in overdue]

    def scale_wanted(self) -> tuple[int, str] | None:
        """How many servers the job is to go on with, once there is a cut for it; and the ticket of who wants it."""
        for answer in self._present():
            scale = answer.get("scale")
            if isinstance(scale, dict) and scale.get("cut") and not scale.get("error"):
                return int(scale["servers"]), str(scale["ticket"])
        return None

    def refuse_scale(self, ticket: str, why: str) -> None:
        """Tell whoever wants another number of servers that it cannot be done."""
        for index in range(len(self._endpoints)):
            link = self._link(index)
            with contextlib.suppress(SparseFleetError):
                link.action("scale_step", {"ticket": ticket, "error": why}, ASK_SECONDS)
            link.client.close()

    def wanted(self) -> str | None:
        """Why the present attempt cannot go on, though no process was seen to end."""
        for answer in self._present():
            if answer.get("bad_cut") and self.cut is not None:
                self._bad_cuts[self.cut] = str(answer["bad_cut"])
        if self.cut in self._bad_cuts:
            return f"the cut {self.cut} cannot be read ({self._bad_cuts[self.cut]})"
        return next((f"a worker: {answer['wanted']}" for answer in self._present() if answer.get("wanted")), None)

    def healed(self) -> float | None:
        """Seconds from the loss to the first step of the new attempt, once."""
        with self._lock:
            if self._lost_at is None or not any(answer.get("trained") for answer in self._present()):
                return None
            seconds, self._lost_at = time.monotonic() - self._lost_at, None
        self._remove_older_cuts()
        return seconds

    def _present(self) -> list[dict[str, Any]]:
        return [answer for answer in list(self._answers.values()) if answer.get("attempt") == self.number]

    def _watch(self, index: int) -> None:
        link: ServerLink | None = None
        while not self._closing.wait(LOOK_EVERY):
            with self._lock:
                if index >= len(self._endpoints):  # the job goes on without this server
                    self._watched.discard(index)
                    break
                endpoint = self._endpoints[index]
            if link is not None and link.endpoint != endpoint:  # it is another one by now
                link.client.close()
                link = None
            with contextlib.suppress(SparseFleetError):  # it is starting, or gone: whoever starts it sees that
                link = link or self._link(index)
                answer = link.action("look", {}, LOOK_SECONDS)
                with self._lock:
                    if self._endpoints[index : index + 1] != (endpoint,):
                        continue
                    self._answers[index], self._heard[index] = answer, time.monotonic()
                    number, cut, why = self.number, self.cut, self._why
                    told: dict[str, Any] = {"attempt": number, "cut": cut, "stopped": list(self._stopped), "why": why}
                    told |= {"servers": list(self._endpoints), "crew": self._crew and list(self._crew)}
                if type(answer.get("attempt")) is int and answer["attempt"] < number:
                    bad = link.action("begin_attempt", told, BEGIN_SECONDS).get("bad_cut")
                    if bad and cut is not None:
                        self._bad_cuts[cut] = str(bad)
                elif answer.get("attempt") == number:
                    for worker in self.left.intersection(answer.get("awaited", [])):
                        link.action("not_coming", {"attempt": number, "worker": worker}, LOOK_SECONDS)
                for worker in self.done.difference(answer.get("stopped", [])):
                    link.action("note_stopped", {"worker": worker}, LOOK_SECONDS)
        if link is not None:
            link.client.close()

    def _link(self, index: int) -> ServerLink:
        security = Security.from_environment(self._environment)
        return ServerLink(RemoteConfig(self._endpoints, token=security.token, tls_root_certs=security.roots), index)


class _Call(NamedTuple):
    """Which call of `fit` a cut was taken in, and whether at its end."""

    fit: int
    ended: bool
    shares: bool
    """It was taken within an epoch of data in shares."""


def _call_in(cut: str | None) -> _Call:
    """As the trainers have recorded it (`cut_record` in `train/healing.py`). Before the first cut there was no call."""
    if cut is not None:
        with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError):
            manifest = Checkpoint.open(cut).manifest
            known = manifest.extra["training"]["heal"]
            shares = any(trainer.isdecimal() for trainer in manifest.positions)  # of leased data there is one for all
            return _Call(int(known["fit"]), known.get("ended") is not None, shares)
    return _Call(0, True, False)


def place_in(cut: str | None, worker: int) -> str:
    """Where a worker's reader stands in a cut, in words."""
    if cut is None:
        return "from the beginning"
    begun = _begun_in(cut, worker)
    if begun is None:
        return f"from {cut} on"
    return ", ".join(_place(*each) for each in begun) or "from the beginning of its share"


def _begun_in(cut: str | None, worker: int) -> list[tuple[str, int, int]] | None:
    """The files that a worker reads in a cut, with the samples and bytes that it has had of each; None: not known."""
    if cut is None:
        return None
    with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError, IndexError):
        position = Checkpoint.open(cut).manifest.positions[str(worker)]
        if not position:  # it had not begun
            return []
        begun = [mark for mark in position["progress"] if not mark[3]]
        return [(position["units"][unit][0], samples, offset) for unit, samples, offset, _ in begun] or None
    return None


def _place(file: str, samples: int, offset: int) -> str:
    """A file, and the line that comes next. Of a file whose lines cannot be counted: after which sample of its unit."""
    after = f"{file} after sample {samples}"
    if offset < 0 or file.endswith((".gz", ".parquet")):
        return after
    lines, left = 1, offset
    try:
        with open(file, "rb") as text:
            while left and (block := text.read(min(left, 1 << 20))):
                lines, left = lines + block.count(b"\n"), left - len(block)
    except OSError:  # it is elsewhere
        return after
    return f"{file} from line {lines} on"
