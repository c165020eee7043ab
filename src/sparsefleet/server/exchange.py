"""Exchange: one trainer's stream of pulls and pushes. Messages are answered in their order.

What is wrong with a message goes back as its answer's `error`; the stream and the server go on.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from sparsefleet import optim
from sparsefleet.core.batch import F32
from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.server.gate import SLICE
from sparsefleet.server.geo import AnswerPart
from sparsefleet.server.holdings import Bound, BoundDense, BoundRows, apply_all
from sparsefleet.server.leases import read_marks
from sparsefleet.server.ledger import GEO, PUSH, Account, Record, Step
from sparsefleet.server.norms import held_parts
from sparsefleet.server.state import ServerState
from sparsefleet.store.shards import HeldBlock
from sparsefleet.store.wire import (
    FRAME_SCHEMA,
    Frame,
    Letter,
    WireError,
    decode,
    describe,
    encode,
    layout_bytes,
    read_parts,
    refusal,
)
from sparsefleet.store.wire.arrays import pack_arrays
from sparsefleet.store.wire.coarse import EXACT, Encoding, Known, encoding_of
from sparsefleet.store.wire.frames import EMPTY, Bytes, address_of
from sparsefleet.store.wire.parts import DENSE, ROWS, Part, Parts, PartSizes, new_bytes
from sparsefleet.store.wire.segment import SHARED_BYTES, Segment

log = logging.getLogger(__name__)

Answer = tuple[dict[str, Any], Bytes]
NOTHING: F32 = np.empty(0, np.float32)


class CutOff(Exception):
    """End the stream without an answer: the client is gone, or a test's hook wants it so."""


IN_PLACE = frozenset({"pull", "push", "geo"})
"""What is done with a shared body before the answer goes out: its floats are read where they are. Others get a copy."""


class Exchange:
    def __init__(self, state: ServerState, account: Account, writer: Any, segment: Segment | None = None) -> None:
        self._state, self._account, self._writer, self._segment = state, account, writer, segment
        self._room: Bytes = EMPTY
        """Where in the segment the answer to the present message may go."""
        self._begun = False
        self._told: dict[str, tuple[int, Known]] = {}
        """By dense block, what this stream's answers have told, where they tell differences: with the number of loads
        at that time, for after a load nothing of it counts. Another stream begins with all of the values."""

    def run(self, reader: Any) -> None:
        self._write({"server": self._state.server_id, "segment": self._segment is not None})
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            number: int | None = None
            self._room = EMPTY
            self._state.meters.under_way += 1
            try:
                frame = decode(chunk.app_metadata, chunk.data)
                number = _sequence(frame.header)
                frame = self._with_shared(frame)
                header, body = self._operation(frame)(self, frame, number)
            except CutOff:
                return
            except (SparseFleetError, OverflowError) as error:
                header, body = refusal(error), EMPTY
            except Exception as error:
                log.exception("worker %d: a message failed", self._account.worker)
                header, body = {"error": f"the server failed: {error!r}; its log says where"}, EMPTY
            finally:
                self._state.meters.under_way -= 1
            if len(body) and len(self._room) and address_of(body) == address_of(self._room):
                self._write({**header, "seq": number, "shared": len(body)})
            else:
                self._write({**header, "seq": number}, body)
            del chunk

    def _with_shared(self, frame: Frame) -> Frame:
        """The message with its body where that is in the shared segment; notes the room there for the answer."""
        body, room = frame.header.get("at"), frame.header.get("room")
        if body is None and room is None:
            return frame
        if self._segment is None:
            raise WireError("a body in shared memory, on a stream that shares none")
        if room is not None:
            self._room = self._segment.view(room)
        if body is None:
            return frame
        view = self._segment.view(body)
        return Frame(frame.header, view if frame.header.get("op") in IN_PLACE else view.copy())

    def _space(self, size: int) -> Bytes:
        """Bytes for an answer: where the caller has room for them, or new ones."""
        return self._room[:size] if SHARED_BYTES <= size <= len(self._room) else new_bytes(size)

    def _filled(self, parts: Sequence[Bound], create: bool = True) -> Bytes:
        """The parts' present values, one behind the other, written where the answer goes."""
        body = self._space(4 * sum(map(_floats, parts)))
        _fill(parts, body.view(np.float32), create)
        return body

    def _operation(self, frame: Frame) -> Operation:
        name = frame.header.get("op")
        operation = OPERATIONS.get(name) if isinstance(name, str) else None
        if operation is None:
            raise WireError(f"operation {name!r} does not exist; there are {', '.join(OPERATIONS)}")
        with self._state.sessions.changed:
            self._state.sessions.check(self._account.worker, self._account.incarnation)
            self._state.sessions.check_job()
        return operation

    def _pull(self, frame: Frame, number: int) -> Answer:
        # Not through the ledger, though it may create rows: see there.
        start = time.perf_counter()
        bound = self._bind(frame, with_values=False)
        create, subscribe = _flag(frame, "create", True), _flag(frame, "subscribe", False)
        if subscribe:
            for part in bound:
                if isinstance(part, BoundRows):
                    self._state.geo.subscribe(self._account.worker, self._account.incarnation, part.table, part.keys)
        body = self._filled(bound, create)
        self._note("pull", bound, start)
        return {}, body

    def _push(self, frame: Frame, number: int) -> Answer:
        start = time.perf_counter()
        bound, asked = self._step_and_asked(frame)
        fresh = self._fresh(frame)
        record = Record(PUSH, [self._step(frame, number)], bound)
        if self._state.ledger.apply(record, lambda: apply_all(bound), self._on_wait):
            self._applied("push", number)
        self._note("push", bound, start)
        start = time.perf_counter()
        answer = self._values(frame, fresh, number, asked)
        if asked:
            self._note("pull", asked, start)
        return answer

    def _sync(self, frame: Frame, number: int) -> Answer:
        if _flag(frame, "receipt", False):
            self._write({"received": number})
        start = time.perf_counter()
        bound: Sequence[Bound]
        bound, asked = self._step_and_asked(frame)
        factor, held = _factor(frame), self._account.held
        if factor is not None:
            if bound:
                raise WireError("a round's gradients are either held from its norm or in the message, not both")
            bound = held_parts(self._account, number, factor)
        fresh = self._fresh(frame)
        done = self._state.rounds.contribute(self._step(frame, number), bound, self._on_wait)
        if self._account.held is held:  # else another stream of this caller is at the next round
            self._account.held = None
        self._applied("sync", number)
        self._note("sync", bound, start)
        start = time.perf_counter()
        header, body = self._values(frame, fresh, number, asked)
        if asked:
            self._note("pull", asked, start)
        return {"round": done, **header}, body

    def _norm(self, frame: Frame, number: int) -> Answer:
        start = time.perf_counter()
        bound, clip_norm, state = self._bind(frame, with_values=True), frame.header.get("clip_norm"), self._state
        if not isinstance(clip_norm, int | float) or not 0 < clip_norm < math.inf:
            raise WireError(f"clip_norm must be a number above 0; got {clip_norm!r}")

        def on_wait(reason: str) -> None:
            if state.rounds.waiting:  # nobody's round can be open before this norm is told
                raise StoreError(
                    f"worker {self._account.worker} clips gradients at norm {clip_norm:g}, and another trainer does "
                    "not: give all of them the same clip_norm"
                )
            self._on_wait(reason)

        # Before the norm: those whose round is open without this trainer have told its norm without it.
        state.rounds.wait_to_be_let_in(self._account, self._on_wait)
        squares = state.norms.squares(self._account, number, bound, float(clip_norm), on_wait)
        self._applied("norm", number)
        self._note("norm", bound, start)
        return {"squares": squares}, EMPTY

    def _geo(self, frame: Frame, number: int) -> Answer:
        start = time.perf_counter()
        bound, account, geo = self._bind(frame, with_values=True), self._account, self._state.geo
        geo.check(bound)
        parts: list[AnswerPart] = []

        def exchange(again: bool) -> None:
            parts[:] = geo.exchange(account.worker, account.incarnation, account.key, number, bound, again)

        record = Record(GEO, [self._step(frame, number)], bound)
        if not self._state.ledger.apply(record, lambda: exchange(False), self._on_wait):
            exchange(True)
        self._applied("geo", number)
        sizes = [PartSizes(_kind(part), part.name, len(keys), _floats(part)) for part, keys in parts]
        body, views = layout_bytes(sizes, self._space)
        for (part, keys), (keys_view, floats_view, _) in zip(parts, views, strict=True):
            keys_view[:] = keys
            _fill([part], floats_view, create=False)
        self._note("geo", bound, start)
        return {"parts": describe(sizes)}, body

    def _create_dense(self, frame: Frame, number: int) -> Answer:
        parts, header = read_parts(frame.header, frame.body), frame.header
        size, rule, layout = header.get("size"), header.get("rule"), header.get("layout", [])
        if len(parts) != 1 or type(size) is not int or not isinstance(rule, dict) or not _is_layout(layout):
            raise WireError("create_dense needs one part, a size, a rule and a layout")
        block, created = self._state.holdings.create_dense(
            parts[0].name,
            size,
            parts[0].floats,
            optim.from_dict(rule),
            [(name, tuple(shape)) for name, shape in layout],
            self._state.sessions.servers,
            _flag(frame, "create", False),
            self._state.config.timeout,
            self._on_wait,
        )
        return {"created": created}, block.table.values.copy().view(np.uint8)

    def _start_buffers(self, frame: Frame, number: int) -> Answer:
        described, body = pack_arrays(self._state.holdings.start_buffers())
        return {"arrays": described}, body

    def _start_inputs(self, frame: Frame, number: int) -> Answer:
        inputs, schema = self._state.holdings.start_samples()
        # Not in the header: kept values may be many.
        body = b"" if schema is None else json.dumps(schema).encode()
        return {"inputs": inputs}, np.frombuffer(body, np.uint8)

    def _put_letter(self, frame: Frame, number: int) -> Answer:
        letter = Letter(self._account.worker, _flag(frame, "last", False), frame.body)
        to = _whole_number(frame, "to")
        if to >= self._state.sessions.workers:
            raise WireError(f"a letter to worker {to}; there are {self._state.sessions.workers}")
        self._state.letters.put(self._account, number, _text(frame, "box"), to, letter, self._on_wait)
        return {}, EMPTY

    def _take_letter(self, frame: Frame, number: int) -> Answer:
        expected = frame.header.get("expected")
        if not isinstance(expected, list) or not all(type(worker) is int for worker in expected):
            raise WireError(f"expected must list workers; got {expected!r}")
        box, index = _text(frame, "box"), _whole_number(frame, "number")
        letter = self._state.letters.take(self._account, box, index, expected, SLICE if expected else 0.0)
        if letter is None:
            return {}, EMPTY
        return {"sender": letter.sender, "last": letter.last}, letter.body

    # ---

    def _step(self, frame: Frame, number: int) -> Step:
        return Step(self._account, number, _whole_number(frame, "steps", 0), read_marks(frame.header.get("marks")))

    def _fresh(self, frame: Frame) -> list[HeldBlock]:
        """The blocks whose values a push asks for, checked before anything is applied."""
        names = frame.header.get("fresh", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise WireError(f"fresh must list dense blocks; got {names!r}")
        bases = frame.header.get("base")
        coarse = encoding_of(frame.header.get("dense", EXACT.name)) is not EXACT
        if names and coarse and not (isinstance(bases, list) and len(bases) == len(names)):
            raise WireError(f"base must have a number for each of {len(names)} blocks; got {bases!r:.80}")
        return [self._state.holdings.block(name) for name in names]

    def _values(self, frame: Frame, held: Sequence[HeldBlock], number: int, rows: Sequence[BoundRows] = ()) -> Answer:
        """The blocks' present values, as the message asks for them, and then the rows."""
        encoding = encoding_of(frame.header.get("dense", EXACT.name))
        if encoding is EXACT or not held:
            return {}, self._filled([*(BoundDense(block, NOTHING) for block in held), *rows])
        loads, said = self._state.holdings.loads, []
        blocks = [block.table for block in held]
        for block, base in zip(blocks, frame.header["base"], strict=True):
            told_at, known = self._told.get(block.name, (-1, None))
            # A trainer that missed an answer, or is told for the first time, hears all of the values.
            follows = known is not None and told_at == loads and known.number == base
            said.append((block, known if follows else None, encoding if follows or not encoding.differences else EXACT))
        sizes = [one.words(len(block.values)) for block, _, one in said]
        body, done = self._space(4 * (sum(sizes) + sum(map(_floats, rows)))), 0
        words = body.view(np.float32)
        for (block, known, one), size in zip(said, sizes, strict=True):
            part, done = words[done : done + size], done + size
            if known is not None:
                known.tell(one, block.values, part, number)
            else:
                values = block.values.copy()  # pushes of others go on: what is told must be what is remembered
                one.write(values, values, part)
                if encoding.differences:
                    self._told[block.name] = (loads, Known(values, number))
        _fill(rows, words[done:])
        return {"as": [one.name for _, _, one in said]}, body

    def _decoded(self, part: Part, encoding: Encoding) -> Part:
        """A dense part with its numbers as floats."""
        if part.kind != DENSE:
            return part
        size = len(self._state.holdings.block(part.name).table.values)
        return replace(part, floats=encoding.checked(f"dense block {part.name!r}", part.floats, size))

    def _step_and_asked(self, frame: Frame) -> tuple[list[Bound], list[BoundRows]]:
        """A step's gradients, and the rows to come with its answer, which are the last `pulls` parts of a message."""
        parts, pulls = self._parts(frame), _whole_number(frame, "pulls", 0)
        if pulls > len(parts):
            raise WireError(f"pulls={pulls} of {len(parts)} parts")
        own = len(parts) - pulls
        return self._state.holdings.bind(parts[:own], with_values=True), self._asked_rows(parts[own:])

    def _asked_rows(self, parts: Parts) -> list[BoundRows]:
        """The rows that a push wants to have with its answer."""
        bound = self._state.holdings.bind(parts, with_values=False)
        rows = [part for part in bound if isinstance(part, BoundRows)]
        if len(rows) != len(bound):
            raise WireError("a push asks for dense blocks by fresh, not as parts")
        return rows

    def _bind(self, frame: Frame, *, with_values: bool) -> list[Bound]:
        return self._state.holdings.bind(self._parts(frame), with_values=with_values)

    def _parts(self, frame: Frame) -> Parts:
        parts = read_parts(frame.header, frame.body)
        encoding = encoding_of(frame.header.get("dense", EXACT.name))
        if encoding is not EXACT:
            parts = [self._decoded(part, encoding) for part in parts]
        if frame.header.get("at") is not None:
            # The trainer can write there at any time, and tables read keys twice: had they changed in between, rows
            # would land outside of a table's arrays. Floats may change: they are only numbers.
            parts = [replace(part, keys=part.keys.copy()) for part in parts]
        return parts

    def _note(self, operation: str, bound: Sequence[Bound], start: float) -> None:
        seconds = time.perf_counter() - start
        for part in bound:
            rows = len(part.keys) if isinstance(part, BoundRows) else 0
            self._state.meters.of(f"{operation} {part.name}").note(rows, seconds)

    def _applied(self, operation: str, number: int) -> None:
        if self._state.after_apply is not None:
            self._state.after_apply(operation, number)

    def _on_wait(self, reason: str) -> None:
        self._state.sessions.check_job()
        try:
            self._write({"waiting": reason})
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.info("worker %d is gone, or has cut its connection, while it waited: %s", self._account.worker, reason)
            raise CutOff from error

    def _write(self, header: dict[str, Any], body: Bytes = EMPTY) -> None:
        metadata, batch = encode(header, body)
        if batch is None:
            self._writer.write_metadata(metadata)
            return
        if not self._begun:
            self._writer.begin(FRAME_SCHEMA)
            self._begun = True
        self._writer.write_with_metadata(batch, metadata)


def _kind(part: Bound) -> str:
    return ROWS if isinstance(part, BoundRows) else DENSE


def _floats(part: Bound) -> int:
    return len(part.keys) * part.table.spec.dim if isinstance(part, BoundRows) else len(part.block.table.values)


def _fill(parts: Sequence[Bound], words: F32, create: bool = True) -> None:
    """Write the parts' present values there, one behind the other."""
    done = 0
    for part in parts:
        place = words[done : done + _floats(part)]
        done += len(place)
        if isinstance(part, BoundRows):
            part.table.pull(part.keys, create, out=place.reshape(len(part.keys), part.table.spec.dim))
        else:
            place[:] = part.block.table.values


Operation = Callable[[Exchange, Frame, int], Answer]

# Not in the instance: a cycle there would keep its segment until the collector comes by.
OPERATIONS: dict[str, Operation] = {
    "pull": Exchange._pull,
    "push": Exchange._push,
    "sync": Exchange._sync,
    "norm": Exchange._norm,
    "geo": Exchange._geo,
    "create_dense": Exchange._create_dense,
    "start_buffers": Exchange._start_buffers,
    "start_inputs": Exchange._start_inputs,
    "put_letter": Exchange._put_letter,
    "take_letter": Exchange._take_letter,
}


def _sequence(header: dict[str, Any]) -> int:
    number = header.get("seq")
    if type(number) is not int or not 0 < number < 1 << 62:
        raise WireError(f"a message's seq must be 1 or above; got {number!r}")
    return number


def _text(frame: Frame, name: str) -> str:
    value = frame.header.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise WireError(f"{name} must be text of 1 to 200 characters; got {value!r}")
    return value


def _whole_number(frame: Frame, name: str, default: int | None = None) -> int:
    value = frame.header.get(name, default)
    if type(value) is not int or value < 0:
        raise WireError(f"{name} must be a whole number, 0 or above; got {value!r}")
    return value


def _factor(frame: Frame) -> float | None:
    """What held gradients are multiplied by; None where a message brings its own."""
    value = frame.header.get("held")
    if value is None:
        return None
    if not isinstance(value, float) or not 0 <= value <= 1:
        raise WireError(f"held must be a number from 0 to 1; got {value!r}")
    return value


def _flag(frame: Frame, name: str, default: bool) -> bool:
    value = frame.header.get(name, default)
    if not isinstance(value, bool):
        raise WireError(f"{name} must be true or false; got {value!r}")
    return value


def _is_layout(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], list)
        and all(type(length) is int and length >= 0 for length in item[1])
        for item in value
    )
