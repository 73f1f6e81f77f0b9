"""One client's connection: only this module and tls_channel.py use a client's socket.

Owns reading, the order of responses (the order of the requests), and the pause of a client that sends faster than it is
served. A connection works on one request at a time (Kafka mutes the channel), so a waiting Fetch or JoinGroup delays
the requests after it. Never interprets a request.

A connection runs requests for a slice of the loop's turn (turns.py), and then waits until the other connections have
had their slices. A long request also yields after a slice (long_work.py). Memory: all connections receive into one
buffer of the server. A connection keeps only bytes that it cannot use yet (frames.py), and counts them if they are many
(memory_budget.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.network.dispatch import Dispatcher, Run, Work
from kbroker.network.frames import FIRST_GROWTH, BadFrame, FrameBuffer
from kbroker.network.loop_watch import HELD_LONG, LoopWatch
from kbroker.network.memory_budget import Memory
from kbroker.network.outbox import Outbox, pieces_of
from kbroker.network.request_times import RequestTimes
from kbroker.network.tls_channel import TlsPort
from kbroker.network.turns import LONG, NOTED, SLICE, TURN, Turns, now
from kbroker.protocol.compiler import Spill
from kbroker.security.principal import Principal

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
_SMALL = 16 * 1024
"""The maximum number of uncounted bytes that a connection may keep.

It is also the maximum number of bytes that a busy connection receives in one call.
"""
_OFTEN = 16
"""A connection that waits for its turn stops polling after libuv has reported the same bytes this number of times.

Otherwise, with more than a thousand waiting connections, libuv would report the same connections again and again, and
no others.
"""
_FLUSH_BYTES = 64 * 1024
"""If the responses have more bytes than this, they are sent before the next request is run."""


class State(Enum):
    """The state of a connection.

    SERVING   runs requests as they arrive, and waits only for the client
    READABLE  like SERVING, but waits for its turn to read the bytes that the client has sent
    QUEUED    has a request, or the rest of a request, and waits for its turn of the loop
    WAITING   one request waits for a future
    SENDING   a response is not completely sent yet
    MUTED     has responded, and does not read for a while: its client has used more than its quota
    ENDING    like QUEUED, WAITING or SENDING, but closes afterwards, and discards received bytes
    CLOSED    discards received bytes

    In the other states a connection keeps received bytes, up to a limit.
    """

    SERVING = 1
    READABLE = 2
    QUEUED = 3
    WAITING = 4
    SENDING = 5
    ENDING = 6
    CLOSED = 7
    MUTED = 8


# Global names are faster than a lookup of the enum's members each time.
_SERVING, _READABLE, _QUEUED, _WAITING, _SENDING, _ENDING, _CLOSED, _MUTED = State


class Owner(Protocol):
    """The parts of the server that a connection needs."""

    dispatcher: Dispatcher
    max_request_bytes: int
    receive_buffer: memoryview
    turns: Turns
    times: RequestTimes
    memory: Memory
    watch: LoopWatch

    def opened(self, connection: Connection) -> RequestContext | None:
        """Admit a connection and return its context; None if the connection exceeds a limit."""

    def closed(self, connection: Connection) -> None:
        """Remove a connection."""

    def renew_receive_buffer(self) -> None:
        """Use another receive buffer from now on, because a request still needs the bytes received last."""


class Polls(Protocol):
    """The loop, or the layer between a connection and its socket: it reports when there are bytes to read."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any: ...

    def remove_reader(self, fd: int, /) -> Any: ...


class Connection:
    """The connection of one client; see the module's docstring."""

    __slots__ = (
        "_context", "_fd", "_frames", "_held", "_long", "_loop", "_mark", "_memory", "_mute", "_notifications", "_out",
        "_outbox", "_owner", "_parked", "_polls", "_reading", "_recv", "_sock", "_spill", "_times",
        "_turns", "_work", "active", "idle_since", "listener", "peer", "run", "state",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: str,
        listener: str = "PLAINTEXT",
        port: TlsPort | None = None,
    ) -> None:
        """`port` is the layer between this connection and its socket; None if there is no layer."""
        self._owner = owner
        self._loop = loop
        self.run: Run = owner.dispatcher.entrance
        """The function that runs a frame: the dispatcher's or, until the client has authenticated, the SASL gate's."""
        self._turns = owner.turns
        self._times = owner.times
        self._memory = owner.memory
        self._sock = sock
        self._fd = sock.fileno()
        self._frames = FrameBuffer(owner.max_request_bytes)
        # These attributes are the poller, the function that reads, and the layer that sends.
        self._polls: Polls
        self._recv: Callable[[memoryview], int]
        if port is None:
            self._polls, self._recv, self._outbox = loop, sock.recv_into, Outbox(loop, self._turns, sock, self._sent)
        else:
            channel = port.channel(sock, self, self._sent)
            self._polls, self._recv, self._outbox = channel, channel.recv_into, channel
        self._out = bytearray()
        self._spill: Spill = []
        self._work: Work | None = None
        self._parked: asyncio.Future[Any] | None = None
        self._held = 0
        self._long = False
        self._reading = False
        self._mark = 0
        self._notifications = 0
        self._mute: asyncio.TimerHandle | None = None
        self.state = _SERVING
        self.active = True
        self.idle_since = 0.0
        self.listener = listener
        self.peer = peer
        self._context: Any = owner.opened(self)
        if self._context is None:
            self.state = _CLOSED
            self._outbox.close()
            sock.close()
        else:
            self._read_on()

    def limit_frames(self, size: int) -> None:
        """Refuse frames larger than `size` bytes from now on."""
        self._frames.limit = size

    @property
    def busy(self) -> bool:
        """Whether a request is in progress, so that later bytes of the client are not processed yet."""
        return self.state is not _SERVING

    def authenticated(self, principal: Principal) -> None:
        """Set the authenticated principal of the client."""
        self._context.principal = principal

    def has_moved(self) -> bool:
        """Return whether bytes were received or sent since the last call, or a request is in progress.

        A client that sends requests and never reads the responses counts as idle, because the broker must free its
        memory at some time.
        """
        mark = self._outbox.left
        moved = self.active or self._work is not None or mark != self._mark
        self.active, self._mark = False, mark
        return moved

    def close(self) -> None:
        """Close the connection after the current request is answered and all responses are sent."""
        if self.state is _CLOSED:
            return
        if self._work is not None or self._outbox.waiting:
            self.state = _ENDING
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self.state is _CLOSED:
            return
        self.state = _CLOSED
        self._stop_reading()
        self._outbox.close()
        self._sock.close()
        if self._parked is not None:
            self._parked.cancel()
        if self._mute is not None:
            self._mute.cancel()
        self._frames.take()
        self._out, self._spill = bytearray(), []
        if self._turns.latest is self:
            self._turns.latest = None
        # The outbox and these fields are part of the only reference cycles. Break the cycles, so that the garbage
        # collector has no work.
        self._context.known_requests = None
        on_closed, self._context.on_closed = self._context.on_closed, None
        for call in () if on_closed is None else on_closed.values():
            call()
        self.run = self._owner.dispatcher.entrance
        work, self._work = self._work, None
        try:
            if work is not None:
                self._leave_lane(work)
                work.steps.close()
        except Exception:
            log.exception("%s from %s could not be ended", work.name if work is not None else "", self.peer)
        finally:
            self._memory.forget(self)
            self._owner.closed(self)

    # --- reading

    def _read_on(self) -> None:
        if not self._reading and self.state is not _CLOSED:
            self._reading = True
            self._polls.add_reader(self._fd, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._polls.remove_reader(self._fd)

    def _readable(self) -> None:
        turns, state = self._turns, self.state
        if state is _READABLE:
            self._notifications += 1
            if self._notifications == _OFTEN:
                self._stop_reading()
            return
        if turns.spent >= TURN or (self._long and turns.latest is not self):
            if state is _SERVING:
                self.state = _READABLE
                self._notifications = 0
                (turns.put if self._long else turns.put_short)(self)
                return
            if turns.spent >= TURN:
                return  # the rest is read later, when the poller reports the socket again
        turns.latest = self
        started = now()
        if turns.served != self._fd:
            turns.serves(self._fd, started)
        self._receive(started + SLICE)
        took = now() - started
        self._long = took > LONG
        turns.spent += took
        if turns.spent > NOTED:
            turns.note()

    def _receive(self, deadline: float) -> None:
        """Receive once, and run the complete requests until `deadline`."""
        self.active = True
        frames = self._frames
        if self.state is not _SERVING or (frames.kept is None and self._memory.tight):
            room = self._owner.receive_buffer[:_SMALL]
        elif frames.kept is None:
            room = self._owner.receive_buffer
        else:
            room = frames.room()
        try:
            count = self._recv(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        if not count:
            self._ended_by_client()
        elif self.state is not _SERVING:
            if self.state is not _ENDING:
                self._keep(room[:count])
        elif frames.kept is None:
            self._consume(room[:count], deadline, shared=True)
        else:
            self._take_in(count, deadline)

    def _take_in(self, count: int, deadline: float) -> None:
        """Add received bytes to an incomplete frame."""
        try:
            data = self._frames.received(count)
        except BadFrame as err:
            self._fail(err)
            return
        if data is not None:
            self._consume(data, deadline, shared=False)
        else:
            self._make_room()

    def _make_room(self) -> None:
        """Provide room for the rest of a frame, or stop reading until there is room."""
        size = self._frames.wanted
        if not size:
            self._account()
        elif size <= FIRST_GROWTH or self._memory.may_hold(self, size):
            try:
                self._frames.grow(size)
            except (OSError, MemoryError) as err:  # the system has no more memory
                self._fail(err)
                return
            self._account()
            self._read_on()
        else:
            self._stop_reading()
            self._memory.wait(self)

    def go_on_reading(self) -> None:
        """Retry to reserve room for the bytes that this connection waits to receive."""
        if self.state is _SERVING:
            self._make_room()

    def _ended_by_client(self) -> None:
        """Close the connection after the current requests, because the client has closed its side.

        If only one request waits, abandon this request and close immediately: the client would not read the response.
        Otherwise stop reading; when reading continues, the poller reports again that the client has closed its side.
        """
        if self.state is _SERVING or (self.state is _WAITING and self._frames.kept is None):
            self.abort()
        else:
            self._stop_reading()

    def _keep(self, data: memoryview) -> None:
        """Keep bytes that cannot be used yet, and stop reading if there are too many."""
        frames = self._frames
        frames.keep(data)
        if self.state is _SERVING:
            self._make_room()
            return
        self._account()
        if frames.filled >= _SMALL:
            self._stop_reading()

    def _account(self) -> None:
        """Count the memory of the kept bytes, if it is more than a small amount."""
        size = self._frames.granted
        if self._outbox.waiting:
            size += self._outbox.in_memory
        if self._work is not None:
            size += self._work.size
        if size <= _SMALL:
            size = 0
        if size != self._held:
            self._held = size
            self._memory.hold(self, size)

    # --- requests

    def _consume(self, data: memoryview, deadline: float, *, shared: bool) -> None:
        """Run complete frames in `data` until `deadline`; keep the rest.

        If `shared`, other connections use the buffer, too.
        """
        frames = self._frames
        run, context, out, spill = self.run, self._context, self._out, self._spill
        times = self._times
        at, stopped = now(), False
        try:
            for frame in frames.cut(data):
                work = run(context, frame, out, spill)
                before, at = at, now()
                if at - before > HELD_LONG:
                    self._owner.watch.request(frame, context, at - before)
                times.due -= 1
                if times.due < 0:
                    times.sample(frame, context, work, before, at)
                if work is not None:
                    self._work = work
                    try:
                        if out:
                            self._flush()
                    finally:  # run it also after a lost connection: closing a coroutine that never ran causes a warning
                        self._work_on(deadline)
                    keeps = work.keeps_frame if self._parked is None else work.keeps_waiting
                    if shared and keeps and self._work is not None:
                        self._owner.renew_receive_buffer()
                    at = now()
                elif spill or len(out) > _FLUSH_BYTES:
                    self._flush()
                    at = now()
                    out, spill = self._out, self._spill
                elif at < deadline:
                    continue
                if self.state is not _SERVING or at >= deadline:
                    stopped = True
                    break
                out, spill = self._out, self._spill
        except (CloseConnection, BadFrame) as err:
            self._fail(err)
            return
        except OSError as err:
            self._lost(err)
            return
        except Exception:
            log.exception("closing the connection from %s", self.peer)
            self.abort()
            return
        if out:
            try:
                self._flush()
            except OSError as err:
                self._lost(err)
                return
        if frames.consumed < len(data) or self._held or self.state is not _SERVING:
            self._leave(data, stopped)

    def _leave(self, data: memoryview, stopped: bool) -> None:
        """Keep unused bytes. If reading was `stopped`, wait for a turn, since these bytes may contain requests."""
        if self.state is _CLOSED:
            return
        rest = data[self._frames.consumed :]
        if rest and self.state is not _ENDING:
            if stopped and self.state is _SERVING:
                self.state = _QUEUED
                self._turns.put(self)
            self._keep(rest)
        else:
            self._account()

    def go_on(self, deadline: float) -> None:
        """Continue after waiting for a turn. Never raise an exception: other connections wait for their turns."""
        try:
            if self._work is not None:
                self._work_on(deadline)
            elif self.state is _READABLE:
                self._read_in_turn(deadline)
                return
            elif self.state is _QUEUED:
                self.state = _SERVING
            if self.state is _SERVING:
                self._resume(deadline)
        except Exception:
            log.exception("closing the connection from %s", self.peer)
            self.abort()

    def _read_in_turn(self, deadline: float) -> None:
        self.state = _SERVING
        started = now()
        self._turns.serves(self._fd, started)
        self._read_on()
        self._receive(deadline)
        self._long = now() - started > LONG

    def _resume(self, deadline: float) -> None:
        """Process the bytes that arrived during a request."""
        if self._frames.kept is not None:
            data = self._frames.take()
            assert data is not None
            self._consume(data, deadline, shared=False)
        elif self._held:
            self._account()
        if self.state is _SERVING and not self._reading:
            self._read_on()

    def _work_on(self, deadline: float) -> None:
        """Continue a long request until `deadline`, or until it awaits a future."""
        work = self._work
        assert work is not None
        send = work.steps.send
        before = now()
        try:
            while (waits := send(None)) is None:
                at = now()
                if at - before > HELD_LONG:
                    self._owner.watch.work(work.name, work.size, self._context, at - before)
                if at >= deadline:
                    self._wait_for_turn(work)
                    return
                before = at
        except StopIteration as end:
            self._worked(end.value, now() - before)
            return
        except CloseConnection as err:
            self._leave_lane(work)
            self._work = None
            self._fail(err)
            return
        except asyncio.CancelledError:  # the awaited future was cancelled, as in `_unpark`
            self.abort()
            return
        except Exception:
            log.exception("closing the connection from %s", self.peer)
            self.abort()
            return
        if work.lane is not None:
            self._leave_lane(work)
        self._park(waits)

    def _wait_for_turn(self, work: Work) -> None:
        if self.state is not _ENDING:
            self.state = _QUEUED
        self._account()
        lane = work.lane = self._turns.lane(work.breadth)
        if lane is None or lane.enter(self):
            self._turns.put(self)

    def _leave_lane(self, work: Work) -> None:
        lane, work.lane = work.lane, None
        if lane is not None:
            lane.leave(self)

    def _worked(self, answer: tuple[bytearray, Spill] | None, took: float) -> None:
        work, self._work = self._work, None
        assert work is not None
        if work.lane is not None:
            self._leave_lane(work)
        if took > HELD_LONG:
            self._owner.watch.work(work.name, work.size, self._context, took)
        if self.state is not _ENDING:
            self.state = _SERVING
        if work.since:
            self._times.note(work.key, self._context, now() - work.since)
        if answer is not None:
            self._out, self._spill = answer
            before = now() - self._outbox.asked_s if work.metering is not None else 0.0
            try:
                self._flush()
            except OSError as err:
                self._lost(err)
                return
            if work.metering is not None:
                work.metering.sent(now() - self._outbox.asked_s - before)
        if self.state is _ENDING:
            self.close()
        elif self._outbox.waiting:
            self.state = _SENDING
        if work.pause_ms:
            self._mute_for(work.pause_ms)
        if self._held:
            self._memory.restart_time(self)

    def _mute_for(self, pause_ms: int) -> None:
        """Stop reading from the client for a while, and process only bytes that are already kept."""
        if self.state in (_ENDING, _CLOSED):
            return
        self._stop_reading()
        self._mute = self._loop.call_later(pause_ms / 1000, self._unmute)
        if self.state is _SERVING:
            self.state = _MUTED

    def shorten_pause(self, ms: float) -> None:
        """Shorten the client's pause by `ms`, if the client is paused."""
        if self._mute is not None:
            self._mute.cancel()
            left = self._mute.when() - self._loop.time() - ms / 1000
            self._mute = self._loop.call_later(max(left, 0.0), self._unmute)

    def _unmute(self) -> None:
        self._mute = None
        if self.state is not _MUTED:
            return  # the response is not sent yet
        self.state = _QUEUED
        self.active = True
        if self._held:
            self._memory.restart_time(self)
        turns = self._turns
        if turns.spent >= TURN:  # for example, if the pauses of many clients end at the same time
            turns.put_short(self)
            return
        started = now()
        self.go_on(started + SLICE)
        turns.used(now() - started)

    def _park(self, future: asyncio.Future[Any]) -> None:
        """Continue when the awaited future is done."""
        self._parked = future
        if self.state is not _ENDING:
            self.state = _WAITING
        future.add_done_callback(self._unpark)

    def _unpark(self, done: asyncio.Future[Any]) -> None:
        self._parked = None
        if done.cancelled():
            self.abort()
            return
        done.exception()  # mark the exception as retrieved: the connection may end before the work continues
        if self.state is _CLOSED:
            return
        turns = self._turns
        if turns.spent >= TURN:  # for example, if a group responds to hundreds of members in one turn
            turns.put_short(self)
            return
        started = now()
        self.go_on(started + SLICE)
        turns.used(now() - started)

    def _fail(self, err: Exception) -> None:
        log.info("closing the connection from %s: %s", self.peer, err)
        self._frames.take()
        if isinstance(err, CloseConnection):
            self._out += err.farewell
        try:
            self._flush()
        except OSError:
            self.abort()
        self.close()

    # --- answers

    def _flush(self) -> None:
        """Send the finished responses. Raise OSError if the connection is broken."""
        out, spill = self._out, self._spill
        if not out:
            return
        self._out = bytearray()
        if not spill:
            self._outbox.send(out)
        else:
            self._spill = []
            pieces = pieces_of(out, spill)
            if len(pieces) == 1 and pieces[0].__class__ is bytearray:
                self._outbox.send(pieces[0])
            else:
                self._outbox.send_pieces(pieces)
        if self._outbox.waiting:
            if self.state is _SERVING:
                self.state = _SENDING
            self._account()

    def _sent(self, error: OSError | None) -> None:
        """Continue after all waiting bytes were sent, or close the connection after an error."""
        if error is not None:
            self._lost(error)
            return
        self.active = True
        if self.state is _ENDING:
            self.close()
        elif self.state is _SENDING and self._mute is not None:
            self.state = _MUTED
            self._account()
        elif self.state is _SENDING:
            if self._held:
                self._memory.restart_time(self)
            self.state = _SERVING
            self.go_on(now() + SLICE)
        else:
            self._account()

    def _lost(self, err: OSError) -> None:
        log.debug("closing the connection from %s: %s", self.peer, err)
        self.abort()
