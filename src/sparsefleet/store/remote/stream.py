"""Stream: a long-lived exchange with one server. Answers come in the order of the calls.

The thread that waits reads: no reader thread stands between, so an answer costs one wake-up. What has been sent and
not answered is kept; after a lost connection the stream is opened again and all of it sent again. Servers apply each
push once.

A server that writes an answer nobody reads stops reading itself, and a client that writes to it then waits for ever.
So a call is only sent, also again, while the answers still to come are small (UNREAD_BYTES, well below gRPC's window);
else they are read first.

Where the server is on this host, large bodies go through memory that both share (wire/segment.py). A segment lives as
long as its connection: after a lost one, the old server thread may still be writing into the old segment, so calls
that are sent again carry their bodies in the message, and so do their answers.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.store.remote.link import BROKEN, ServerLink
from sparsefleet.store.remote.long_wait import LongWait
from sparsefleet.store.wire import FRAME_SCHEMA, PROTOCOL, Frame, decode, encode, refused, to_json
from sparsefleet.store.wire.frames import EMPTY, Bytes
from sparsefleet.store.wire.parts import new_bytes
from sparsefleet.store.wire.segment import AVAILABLE, SHARED_BYTES, OwnSegment

UNREAD_BYTES = 32 << 10
UNACKNOWLEDGED_BYTES = 64 << 20
ANSWER_BYTES = 256
"""An answer without rows."""
REPAIRS = 3
"""Times that one wait opens a broken connection anew."""


RETRIED = (flight.FlightUnavailableError, flight.FlightInternalError)
"""What an action raises when the connection, not the server, is at fault."""
FAULTS = (*BROKEN, StoreError)


class Call:
    """One message under way, and its answer, which is valid until `release`."""

    __slots__ = (
        "_room",
        "_segment",
        "answer",
        "answer_bytes",
        "body",
        "bytes",
        "error",
        "header",
        "number",
        "operation",
        "received",
        "stream",
        "unread",
    )

    def __init__(
        self, stream: Stream, operation: str, header: Mapping[str, Any], body: Bytes, segment: OwnSegment | None
    ) -> None:
        self.stream, self.operation, self.number = stream, operation, header["seq"]
        self.header, self.body = header, body
        self.bytes = len(body)
        """What waits to be sent again."""
        self.answer_bytes = 0
        self.unread = 0
        """What of the answer will come in a message of the present connection; 0: the call was not sent on it yet."""
        self._segment = segment
        self._room: Bytes | None = None
        self.answer: Frame | None = None
        self.error: SparseFleetError | None = None
        self.received = False
        """Whether the server has said that it has the message; it does where the message asks for that (`receipt`)."""

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def wait(self, seconds: float, until: float | None = None) -> Frame:
        if not self.done:
            self.stream.collect(self, seconds, until)
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def make_room(self, answer_bytes: int) -> None:
        """Room for an answer of about so many bytes, in the segment where there is one."""
        if self._segment is not None and answer_bytes >= SHARED_BYTES:
            self._room = self._segment.take(answer_bytes)
        self.answer_bytes = answer_bytes

    def encoded(self, segment: OwnSegment | None) -> tuple[pa.Buffer, pa.RecordBatch | None]:
        """What to write on a connection that has this segment; notes what will be `unread`."""
        if segment is None or segment is not self._segment:
            self.unread = ANSWER_BYTES + self.answer_bytes
            return encode(self.header, self.body)
        self.unread = ANSWER_BYTES + (self.answer_bytes if self._room is None else 0)
        shared: dict[str, Any] = {}
        place = segment.place(self.body) if len(self.body) else None
        if place is not None:
            shared["at"] = place
        if self._room is not None:
            shared["room"] = segment.place(self._room)
        return encode({**self.header, **shared}, EMPTY if place is not None else self.body)

    def take_in(self, frame: Frame) -> None:
        """The server's answer has come: nothing is to be sent again.

        Ctrl-C may come between any two lines: until there is an answer, the body is kept.
        """
        if "error" in frame.header:
            self.error = refused(frame.header, f"{self.stream.link}, {self.operation}")
        elif (shared := frame.header.get("shared")) is None:
            self.answer = frame
        elif self._room is None or type(shared) is not int or not 0 <= shared <= len(self._room):
            self.error = StoreError(f"{self.stream.link}, {self.operation}: {shared!r} shared bytes were not asked for")
        else:
            self.answer = Frame(frame.header, self._room[:shared])
        body, self.body = self.body, EMPTY
        self._give_back(body)

    def fail(self, error: StoreError) -> None:
        # Nothing is given back: a server that is at fault may still be reading and writing there.
        self.error, self.body, self._room = error, EMPTY, None

    def release(self) -> None:
        """The answer is used up."""
        if self._room is not None and self.done:
            self._give_back(self._room)
            self._room = None

    def _give_back(self, room: Bytes) -> None:
        if self._segment is not None and len(room):
            self._segment.give_back(room)

    def __del__(self) -> None:
        self.release()


class Stream:
    def __init__(self, link: ServerLink, hello: Mapping[str, Any], watchdog: Watchdog) -> None:
        self.link, self._hello, self._watchdog = link, dict(hello), watchdog
        self.deadline: float | None = None
        """When the watchdog cancels what is being waited for; None: nothing is."""
        self.expired = False
        self._lock = threading.RLock()
        self._unanswered: deque[Call] = deque()
        self._writer: Any = None
        self._reader: Any = None
        self._begun = False
        self._segment: OwnSegment | None = None
        """Shared with the server of the present connection; None: bodies go in the messages."""
        self._closed = False
        self._long_wait: LongWait | None = None
        """Of the wait under way, once the server has said that it is one."""
        watchdog.watch(self)

    def send(self, operation: str, header: Mapping[str, Any], body: Bytes = EMPTY, answer_bytes: int = 0) -> Call:
        """Send a message whose answer carries about `answer_bytes`; call from one thread at a time."""
        call = Call(self, operation, header, body, self._segment)
        with self._lock:
            try:
                self._queue(call, answer_bytes)
            except KeyboardInterrupt:
                # It goes out with the next call, though nobody waits for it: other servers may have had their part.
                if call not in self._unanswered and not call.done:
                    self._unanswered.append(call)
                self._drop()  # it may have gone out in part
                raise
        if call.error is not None:
            raise call.error  # now, not when waited for: or a caller goes on sending, each time until the time-out
        return call

    def room(self, size: int) -> Bytes:
        """Bytes to fill and send as a body: in the shared segment where there is one."""
        segment = self._segment
        room = segment.take(size) if segment is not None and size >= SHARED_BYTES else None
        return new_bytes(size) if room is None else room

    def collect(self, call: Call, seconds: float, until: float | None = None) -> None:
        """Read answers until the call's own has come, for so many seconds without a sign of life, or else `until`."""
        if not self._lock.acquire(timeout=seconds if until is None else max(0.0, until - time.monotonic())):
            raise self.link.silent(call.operation, seconds)
        try:
            deadline = time.monotonic() + seconds if until is None else until
            while not call.done:
                later = self._read_one(deadline, seconds)
                deadline = later if until is None else until
        finally:
            self._lock.release()

    @property
    def shares_memory(self) -> bool:
        """Whether large bodies go past the network."""
        return self._segment is not None

    def wait_until_received(self, call: Call, seconds: float) -> None:
        """Read until the server has the whole of the call's message, for so many seconds without a sign of life."""
        with self._lock:
            deadline = time.monotonic() + seconds
            while not call.received and not call.done:
                deadline = self._read_one(deadline, seconds)

    def cancel(self) -> None:
        """From the watchdog: make whatever read or write is under way raise."""
        self.expired = True
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def close(self, deadline: float) -> None:
        """End the connection, by the deadline in good order. Calls that are not answered yet never will be."""
        self._closed = True
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self.cancel()
            return
        try:
            if self._writer is not None and time.monotonic() < deadline:
                self._say_goodbye(deadline)
        except BROKEN:
            pass  # then it ends without a good-bye
        finally:
            self._drop()
            self._lock.release()

    # --- with the lock held

    def _queue(self, call: Call, answer_bytes: int) -> None:
        """Make room, queue the call, and return when it is sent."""
        seconds = self.link.config.timeout
        while self._unanswered and (
            self._unread() > UNREAD_BYTES or sum(other.bytes for other in self._unanswered) > UNACKNOWLEDGED_BYTES
        ):
            self._read_one(time.monotonic() + seconds, seconds)
        call.make_room(answer_bytes)
        self._unanswered.append(call)
        deadline = time.monotonic() + seconds
        try:
            if self._reader is None:
                self._open(call.operation, deadline)
            else:
                self._write_on(deadline)
        except FAULTS as error:
            self._repair(error, call.operation, deadline, seconds)
        while not call.unread and not call.done:  # behind others that are sent again
            self._read_one(time.monotonic() + seconds, seconds)

    def _say_goodbye(self, deadline: float) -> None:
        """End the call in good order: a cancelled one makes Arrow complain on stderr."""
        self._guarded(self._writer.done_writing, deadline)
        with contextlib.suppress(StopIteration):
            while True:
                self._guarded(self._reader.read_chunk, deadline)
        self._guarded(self._writer.close, deadline)
        self._reader = self._writer = None

    def _read_one(self, deadline: float, seconds: float) -> float:
        """Take in the next answer, and return the deadline, which moves on when the server says that it is at work."""
        try:
            return self._read_or_repair(deadline, seconds)
        except KeyboardInterrupt:
            if self._unanswered and self._unanswered[0].done:
                self._unanswered.popleft()
            self._drop()  # an answer may be lost that had just been read: asked again, the server gives it again
            raise

    def _read_or_repair(self, deadline: float, seconds: float) -> float:
        call, repairs = self._unanswered[0], 0
        while True:
            try:
                if self._reader is None:
                    self._open(call.operation, deadline)
                self._write_on(deadline)
                chunk = self._guarded(self._reader.read_chunk, deadline)
                break
            except FAULTS as error:
                repairs += 1
                if repairs > REPAIRS:
                    self._fail(self._as_store_error(error, call.operation, seconds))
                    return deadline
                self._repair(error, call.operation, deadline, seconds)
                if not self._unanswered:
                    return deadline
        self.link.heard = time.monotonic()
        frame = decode(chunk.app_metadata, chunk.data)
        if "waiting" in frame.header:
            self.link.check_all()
            self._long_wait = self._long_wait or LongWait()
            self._long_wait.tell(f"{self.link}, {call.operation}", str(frame.header["waiting"]))
            return time.monotonic() + seconds
        self._long_wait = None
        if frame.header.get("received") == call.number:
            call.received = True
            return deadline
        if frame.header.get("seq") != call.number:
            answered = frame.header.get("seq")
            self._fail(StoreError(f"{self.link} answered message {answered} where {call.number} was expected"))
            return deadline
        call.take_in(frame)
        self._unanswered.popleft()  # not before: a call that is neither here nor answered would be waited for in vain
        return deadline

    def _open(self, operation: str, deadline: float) -> None:
        """Connect, say who we are, and begin to send whatever is unanswered."""
        link = self.link
        # A call with a time-out first: opening a stream on a dead connection cannot be cancelled.
        link.action("ping", {}, max(0.001, deadline - time.monotonic()))
        self._begun = False
        segment = _new_segment() if link.config.shared_memory else None
        offer = {} if segment is None else {"segment": segment.offer()}
        self._writer, self._reader = link.client.do_exchange(
            flight.FlightDescriptor.for_command(to_json({"protocol": PROTOCOL, **self._hello, **offer}))
        )
        chunk = self._guarded(self._reader.read_chunk, deadline)
        header = decode(chunk.app_metadata, chunk.data).header
        if link.server_id is not None and header.get("server") != link.server_id:
            raise link.restarted(operation)
        if "error" in header:
            raise refused(header, f"{link}, {operation}")
        if segment is not None:
            segment.withdraw()
            self._segment = segment if header.get("segment") is True else None
        for call in self._unanswered:
            call.unread = 0
        self._write_on(deadline)

    def _unread(self) -> int:
        return sum(call.unread for call in self._unanswered)

    def _write_on(self, deadline: float) -> None:
        """Send the calls that were not sent on this connection, in order, while answers still to come are small."""
        for call in self._unanswered:
            if not call.unread:
                if self._unread() > UNREAD_BYTES:
                    return
                self._write(call, deadline)

    def _write(self, call: Call, deadline: float) -> None:
        metadata, batch = call.encoded(self._segment)
        if batch is None:
            self._guarded(lambda: self._writer.write_metadata(metadata), deadline)
            return
        if not self._begun:
            self._guarded(lambda: self._writer.begin(FRAME_SCHEMA), deadline)
            self._begun = True
        self._guarded(lambda: self._writer.write_with_metadata(batch, metadata), deadline)

    def _guarded(self, act: Any, deadline: float) -> Any:
        self.expired = False
        self.deadline = deadline
        try:
            return act()
        finally:
            self.deadline = None

    def _repair(self, error: BaseException, operation: str, deadline: float, seconds: float) -> None:
        """Open the stream again for what was not answered; when that cannot be, all of it has failed."""
        pause = 0.05
        for _ in range(REPAIRS):
            self._drop()
            final = isinstance(error, StoreError) and not isinstance(error.__cause__, RETRIED)
            self.expired = self.expired or time.monotonic() + pause > deadline
            if final or self.expired or self._closed:
                break
            time.sleep(pause)
            pause *= 4
            try:
                self._open(operation, deadline)
                return
            except FAULTS as again:
                error = again
        self._fail(self._as_store_error(error, operation, seconds))

    def _as_store_error(self, error: BaseException, operation: str, seconds: float) -> StoreError:
        if self._closed:
            return StoreError(f"the store was closed while {operation} was under way")
        if self.expired:
            return self.link.silent(operation, seconds)
        return error if isinstance(error, StoreError) else self.link.failed(operation, error, seconds)

    def _fail(self, error: StoreError) -> None:
        for call in self._unanswered:
            call.fail(error)
        self._unanswered.clear()
        self._drop()

    def _drop(self) -> None:
        # The writer's end waits for the server's, with the interpreter locked, unless the call was cancelled before.
        # And it is ended here, not where it is forgotten: there Arrow would complain on stderr.
        reader, writer = self._reader, self._writer
        self._reader = self._writer = self._segment = None
        if reader is not None:
            reader.cancel()
            with contextlib.suppress(*BROKEN):
                writer.close()

    def __del__(self) -> None:
        self._drop()


def _new_segment() -> OwnSegment | None:
    try:
        return OwnSegment() if AVAILABLE else None
    except OSError:
        return None  # no memory or address space to spare: it can be done without


class Watchdog:
    """Cancels streams whose deadline has passed: a stopped server or a cut link raises nothing by itself."""

    def __init__(self, timeout: float) -> None:
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._interval = min(1.0, max(0.02, timeout / 20))
        self._thread = threading.Thread(target=self._run, name="sparsefleet-watchdog", daemon=True)
        self._thread.start()

    def watch(self, stream: Stream) -> None:
        with self._lock:
            self._streams.add(stream)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            with self._lock:
                streams = list(self._streams)
            for stream in streams:
                deadline = stream.deadline
                if deadline is not None and now > deadline:
                    stream.cancel()
            del streams
