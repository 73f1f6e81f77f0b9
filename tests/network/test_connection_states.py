"""A connection in each of its states: a real loop and a socket pair, and a fake server."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import struct
from types import SimpleNamespace

import pytest

from kbroker.handlers.registry import CloseConnection
from kbroker.long_work import turn
from kbroker.network.connection import Connection, State
from kbroker.network.memory_budget import Memory
from kbroker.network.request_times import RequestTimes
from kbroker.network.turns import TURN, Breadth, Turns, now

DEADLINE = 10.0


class Long:
    """A request that is answered in several steps."""

    name = "Long v0"
    size = 0
    keeps_frame = keeps_waiting = False
    breadth = Breadth.WIDE
    lane = metering = None
    key = 0

    def __init__(self, steps, pause_ms=0):
        self.since = 0.0
        self.steps = steps
        self.pause_ms = pause_ms


class Context:
    """A handler's context, which is empty."""

    client_host = "/10.0.0.7"
    client_id = None
    follows = False
    on_closed = None


class Server:
    """Accepts everyone; answers a frame with itself, "wait" once `answer` is done, "long N" after N steps."""

    max_request_bytes = 1_000_000

    def __init__(self, admit=True):
        loop = asyncio.get_running_loop()
        self.receive_buffer = memoryview(bytearray(256 * 1024))
        self.dispatcher = self.watch = self
        self.turns = Turns(loop)
        self.memory = Memory(-1)
        self.times = RequestTimes()
        self.answer = loop.create_future()
        self.admit = admit
        self.gone = False
        self.waits = False
        self.steps = 0
        self.large = b"large" * 2_000_000
        self.pause_ms = 200

    def opened(self, _connection):
        return Context() if self.admit else None

    def closed(self, _connection):
        self.gone = True

    async def left(self):
        """Wait until the connection is closed."""
        deadline = now() + DEADLINE
        while not self.gone:
            assert now() < deadline
            await asyncio.sleep(0)

    def renew_receive_buffer(self):
        self.receive_buffer = memoryview(bytearray(256 * 1024))

    def request(self, *_):
        pass

    work = request

    def entrance(self, _context, frame, out, _spill):
        if frame == b"wait":
            return Long(self._wait())
        if frame == b"keep and wait":
            work = Long(self._wait())
            work.keeps_frame = work.keeps_waiting = True
            return work
        if bytes(frame[:5]) == b"long ":
            return Long(self._go_on(int(bytes(frame[5:]))))
        if frame == b"mute silently":
            return Long(self._answer(None), self.pause_ms)
        if frame == b"mute large":
            return Long(self._answer(self.large), self.pause_ms)
        if bytes(frame[:5]) == b"mute ":
            return Long(self._answer(), int(bytes(frame[5:])))
        if frame == b"nonsense":
            raise CloseConnection("nonsense")
        if frame == b"fault":
            raise ZeroDivisionError
        out += self.large if frame == b"large" else frame
        return None

    async def _answer(self, answer=b"muted"):
        return None if answer is None else (bytearray(answer), [])

    async def _wait(self):
        self.waits = True
        try:
            answer = await self.answer
        except RuntimeError:
            answer = b"error"
        return bytearray(answer), []

    async def _go_on(self, steps):
        for _ in range(steps):
            self.steps += 1
            started = now()
            while now() < started + 0.0002:
                pass
            await turn
        return bytearray(b"done"), []


class Client:
    """The other end of the connection."""

    def __init__(self, sock):
        sock.setblocking(False)
        self.sock = sock
        self.received = b""
        self.closed = False

    async def feed(self, data):
        await asyncio.get_running_loop().sock_sendall(self.sock, data)
        await settled()

    def look(self):
        while True:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                return self.received
            except ConnectionResetError:
                data = b""
            if not data:
                self.closed = True
                return self.received
            self.received += data

    async def until(self, happened):
        deadline = now() + DEADLINE
        while not happened():
            assert now() < deadline, (self.look()[:100], self.closed)
            await asyncio.sleep(0)
            self.look()


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@pytest.fixture
def play():
    """Run a coroutine function with (server, connection, client)."""

    def run(story, **options):
        async def main():
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            server = Server(**options)
            connection = Connection(server, asyncio.get_running_loop(), ours, "10.0.0.7:4711")
            client = Client(theirs)
            await story(server, connection, client)
            connection.abort()
            theirs.close()
            await settled()

        asyncio.run(main())

    return run


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


def test_it_serves_what_comes(play):
    async def story(_server, connection, client):
        await client.feed(framed(b"a", b"b") + framed(b"c")[:3])
        assert client.look() == b"ab"
        await client.feed(framed(b"c")[3:])
        assert client.look() == b"abc"
        assert connection.state is State.SERVING

    play(story)


def test_what_comes_while_it_works_waits_its_turn(play):
    async def story(server, connection, client):
        await client.feed(framed(b"a", b"wait", b"b"))
        await client.feed(framed(b"c"))
        assert (connection.state, client.look()) == (State.WAITING, b"a")
        server.answer.set_result(b"answer")
        await client.until(lambda: client.received == b"aanswerbc")
        assert connection.state is State.SERVING

    play(story)


def test_it_stops_reading_while_much_waits(play):
    async def story(server, connection, client):
        await client.feed(framed(b"wait"))
        sent = asyncio.ensure_future(client.feed(framed(bytes(900_000))))
        await settled()
        assert not sent.done()
        assert len(connection._frames.kept) <= 64 * 1024
        server.answer.set_result(b"answer")
        await client.until(lambda: len(client.received) == 6 + 900_000)
        await sent

    play(story)


def test_a_client_that_takes_no_answers_is_not_served(play):
    async def story(server, connection, client):
        await client.feed(framed(b"large", b"a", b"large"))
        assert connection.state is State.SENDING
        assert connection._outbox.in_memory == server.memory.used - connection._frames.granted
        await client.until(lambda: len(client.received) == 2 * len(server.large) + 1)
        assert (connection.state, server.memory.used) == (State.SERVING, 0)

    play(story)


def test_a_long_request_lets_others_go_first(play):
    async def story(server, connection, client):
        other, theirs = socket.socketpair()
        other.setblocking(False)
        second = Connection(server, asyncio.get_running_loop(), other, "10.0.0.8:1")
        quiet = Client(theirs)
        await client.feed(framed(b"long 500", b"b"))
        assert connection.state is State.QUEUED
        before = server.steps
        await quiet.feed(framed(b"quick"))
        await quiet.until(lambda: quiet.received == b"quick")
        assert server.steps - before < 250, "a tenth of a second"
        await client.until(lambda: client.received == b"doneb")
        assert server.steps == 500
        second.abort()
        theirs.close()

    play(story)


def test_pipelined_requests_are_run_in_order_a_slice_at_a_time(play):
    async def story(_server, _connection, client):
        bodies = [b"%d," % i for i in range(20_000)]
        sent = asyncio.ensure_future(client.feed(framed(*bodies)))
        await client.until(lambda: client.received == b"".join(bodies))
        await sent

    play(story)


def test_what_was_asked_before_the_client_left_is_done(play):
    """As Kafka does for acks=0: the response goes nowhere, but the request takes effect."""

    async def story(server, _connection, client):
        await client.feed(framed(b"long 50"))
        client.sock.close()
        await server.left()
        assert server.steps == 50

    play(story)


@pytest.mark.parametrize("parked", [False, True], ids=["before it waits", "while it waits"])
def test_it_ends_when_what_a_request_awaits_is_cancelled(play, parked):
    """Also if the request notices that itself: the future is already cancelled, or is a gathering one."""

    async def story(server, connection, client):
        cancelled = server.answer
        if parked:
            server.answer = asyncio.gather(cancelled)
            await client.feed(framed(b"wait"))
        cancelled.cancel()
        await client.feed(b"" if parked else framed(b"wait"))
        await settled()
        assert (connection.state, server.gone) == (State.CLOSED, True)

    play(story)


def test_an_error_is_retrieved_though_the_connection_ends_before_the_request_goes_on(play):
    async def story(server, connection, client):
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
        await client.feed(framed(b"wait"))
        server.answer.set_exception(ValueError)
        server.turns.spent = TURN
        await asyncio.sleep(0)
        assert connection.state is State.WAITING, "for its turn"
        connection.abort()
        server.answer = None
        gc.collect()
        assert reported == []

    play(story)


def test_a_request_behind_an_answer_that_cannot_be_sent_is_closed_in_order(play, recwarn):
    gc.collect()  # what earlier tests have left
    recwarn.clear()

    class Gone:
        """An outbox whose client is gone."""

        waiting = left = in_memory = 0

        def send(self, _data):
            raise BrokenPipeError

        def close(self):
            pass

    async def story(server, connection, client):
        connection._outbox.close()
        connection._outbox = Gone()
        await client.feed(framed(b"a", b"wait"))
        # On a busy machine the first request uses the whole turn, and the second one does not begin.
        assert (connection.state, server.answer.cancelled()) == (State.CLOSED, server.waits)

    play(story)
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []


def test_it_ends_once_the_last_answer_is_there(play):
    async def story(server, connection, client):
        await client.feed(framed(b"wait", b"never run"))
        connection.close()
        await client.feed(framed(b"nor this"))
        assert (connection.state, client.closed) == (State.ENDING, False)
        server.answer.set_result(b"answer")
        await client.until(lambda: client.closed)
        assert (connection.state, client.received) == (State.CLOSED, b"answer")

    play(story)


def test_it_ends_once_a_large_answer_has_left(play):
    async def story(server, connection, client):
        await client.feed(framed(b"large"))
        connection.close()
        assert connection.state is State.ENDING
        await client.until(lambda: client.closed)
        assert client.received == server.large

    play(story)


def test_it_ends_at_once_when_nothing_waits(play):
    async def story(server, connection, client):
        connection.close()
        await client.until(lambda: client.closed)
        assert (connection.state, server.gone) == (State.CLOSED, True)

    play(story)


@pytest.mark.parametrize(
    ("last", "answered"), [(b"nonsense", [b"a"]), (b"fault", [b"", b"a"])], ids=["nonsense", "a fault of ours"]
)
def test_what_cannot_be_served_ends_it(play, last, answered):
    """An internal error discards the responses of its slice; on a busy machine the slice may end earlier."""

    async def story(_server, connection, client):
        await client.feed(framed(b"a", last, b"b"))
        await client.until(lambda: client.closed)
        assert connection.state is State.CLOSED
        assert client.received in answered

    play(story)


@pytest.mark.parametrize("after", [b"", b"wait", b"long 50"])
def test_an_impossible_frame_ends_it_once_what_came_before_is_answered(play, after):
    async def story(server, connection, client):
        await client.feed(framed(b"a", *([after] if after else [])) + b"\xff\xff\xff\xff")
        server.answer.set_result(b"answer")
        await client.until(lambda: client.closed)
        assert connection.state is State.CLOSED
        assert client.received == {b"": b"a", b"wait": b"aanswer", b"long 50": b"adone"}[after]

    play(story)


@pytest.mark.parametrize("request_", [b"wait", b"long 100000"])
def test_a_client_that_is_gone_is_worked_for_no_more(play, request_):
    async def story(server, connection, client):
        await client.feed(framed(request_))
        connection.abort()
        steps = server.steps
        await settled()
        assert server.answer.cancelled() is (request_ == b"wait")
        assert (server.gone, connection.state, client.look()) == (True, State.CLOSED, b"")
        assert server.steps == steps

    play(story)


def test_a_parked_request_ends_when_the_client_leaves(play):
    async def story(server, connection, client):
        await client.feed(framed(b"wait"))
        client.sock.close()
        await settled()
        assert (server.answer.cancelled(), connection.state) == (True, State.CLOSED)

    play(story)


def test_a_client_that_is_not_admitted_is_ended(play):
    async def story(_server, _connection, client):
        client.look()
        assert client.closed

    play(story, admit=False)


def test_many_that_are_answered_at_once_share_the_turns(play):
    """Hundreds of group members get their responses in one callback of the loop; none of them may hold it for all."""

    async def story(server, connection, client):
        await client.feed(framed(b"wait", b"b"))
        order = []
        server.turns.spent = TURN
        server.turns._scheduled = True  # so that no turn ends meanwhile
        server.answer.add_done_callback(lambda _: order.append(connection.state))
        server.answer.set_result(b"answer")
        await settled()
        assert (order, connection.state, client.look()) == ([State.WAITING], State.WAITING, b"")
        server.turns._turn()
        assert (connection.state, client.look()) == (State.SERVING, b"answerb")

    play(story)


def test_what_is_told_of_in_a_turn_that_is_used_up_is_read_in_its_turn(play):
    """The poller reports the same sockets in the same order: a skipped socket would be skipped again and again."""

    async def story(server, connection, client):
        server.turns.spent = TURN
        server.turns._scheduled = True  # so that no turn ends meanwhile
        client.sock.send(framed(b"a", b"b"))
        await settled()
        assert (connection.state, client.look()) == (State.READABLE, b"")
        server.turns.spent = 0.0  # another turn began, which did not reach this connection
        connection._readable()  # reported once more
        assert client.look() == b""
        server.turns._turn()
        assert (connection.state, client.look()) == (State.SERVING, b"ab")
        assert connection._reading
        assert server.turns.spent == 0.0
        await client.feed(framed(b"c"))
        assert client.look() == b"abc"

    play(story)


@pytest.mark.parametrize("leave", ["close", "abort", "client"])
def test_who_leaves_before_its_turn_is_forgotten(play, leave):
    async def story(server, connection, client):
        server.turns.spent = TURN
        server.turns._scheduled = True
        client.sock.send(framed(b"a"))
        await settled()
        assert connection.state is State.READABLE
        if leave == "client":
            client.sock.close()
        else:
            getattr(connection, leave)()
        server.turns._turn()
        await settled()
        assert server.gone
        assert connection.state is State.CLOSED

    play(story)


def test_who_needs_much_waits_while_others_are_there(play, monkeypatch):
    monkeypatch.setattr("kbroker.network.connection.LONG", 60.0)  # so that a busy machine makes no request a long one

    async def story(server, connection, client):
        connection._long = True
        server.turns.latest = connection
        await client.feed(framed(b"a"))
        assert client.look() == b"a"
        client.received = b""
        for latest in (None, connection):  # another one has read; then only this one
            connection._long = True
            server.turns.latest = latest
            server.turns._scheduled = latest is None
            client.sock.send(framed(b"b"))
            await settled()
            assert connection.state is (State.READABLE if latest is None else State.SERVING)
            if latest is None:
                server.turns._turn()
            assert client.look() == b"b"
            client.received = b""
            assert not connection._long

    play(story)


def test_who_needs_much_is_read_while_its_request_waits(play):
    """Otherwise the poller would report it forever."""

    async def story(server, connection, client):
        await client.feed(framed(b"wait"))
        connection._long = True
        server.turns.latest = None
        client.sock.send(framed(b"b"))
        await settled()
        assert connection.state is State.WAITING
        server.answer.set_result(b"answer")
        await settled()
        assert client.look() == b"answerb"

    play(story)


@pytest.mark.parametrize(("request_", "renewed"), [(b"wait", False), (b"keep and wait", True), (b"long 50", False)])
def test_nothing_is_received_over_what_a_waiting_request_still_needs(play, request_, renewed):
    """Otherwise the next client's bytes would be mistaken for this client's records."""

    async def story(server, _connection, client):
        before = server.receive_buffer
        await client.feed(framed(request_))
        assert (server.receive_buffer is not before) is renewed

    play(story)


def test_what_waits_behind_a_parked_request_is_done_when_the_client_leaves(play):
    async def story(server, connection, client):
        await client.feed(framed(b"wait", b"long 50"))
        client.sock.shutdown(socket.SHUT_WR)
        await settled()
        assert connection.state is State.WAITING
        server.answer.set_result(b"answer")
        await server.left()
        assert server.steps == 50

    play(story)


def test_half_sent_frames_take_turns_for_memory(play):
    """A frame over the total limit is accepted if nobody else uses memory; a second one waits until it is done."""

    async def story(server, connection, client):
        server.memory.limit = 300_000
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        second = Connection(server, asyncio.get_running_loop(), ours, "10.0.0.8:1")
        other = Client(theirs)
        frame = framed(bytes(900_000))
        await client.feed(frame[:250_000])
        sent = asyncio.ensure_future(other.feed(frame))
        await client.until(lambda: server.memory._waiting)
        assert server.memory.used <= 900_000 + 4 + 64 * 1024
        sending = asyncio.ensure_future(client.feed(frame[250_000:]))
        await client.until(lambda: len(client.received) == 900_000)
        await other.until(lambda: len(other.received) == 900_000)
        await sent
        await sending
        assert server.memory.used == 0
        second.abort()
        theirs.close()

    play(story)


async def until_state(connection, state):
    deadline = now() + DEADLINE
    while connection.state is not state:
        assert now() < deadline, connection.state
        await asyncio.sleep(0)


def test_it_reads_nothing_while_its_client_has_to_pause(play):
    async def story(_server, connection, client):
        before = now()
        await client.feed(framed(b"a", b"mute 200", b"b"))
        assert (connection.state, client.look()) == (State.MUTED, b"amuted")
        sent = asyncio.ensure_future(client.feed(framed(bytes(900_000))))
        await settled()
        assert not sent.done()
        await client.until(lambda: client.received == b"amutedb" + bytes(900_000))
        assert now() - before >= 0.2
        assert connection.state is State.SERVING
        await sent

    play(story)


def test_the_time_in_which_a_full_socket_is_asked_is_not_charged(play, monkeypatch):
    clock = itertools.count(100.0)
    monkeypatch.setattr("kbroker.network.connection.now", lambda: next(clock))

    async def story(server, connection, _client):
        charged = []
        work = Long(server._answer())
        work.metering = SimpleNamespace(sent=charged.append)
        connection._work = work
        connection._worked((bytearray(b"answer"), []), 0.0)
        assert charged == [1.0 - 0.25]

    def send(_data):
        connection_outbox.asked_s += 0.25

    connection_outbox = SimpleNamespace(asked_s=7.0, waiting=False, send=send, close=lambda: None)
    monkeypatch.setattr("kbroker.network.connection.Outbox", lambda *_: connection_outbox)
    play(story)


def test_who_has_no_answer_to_get_pauses_as_well(play):
    async def story(_server, connection, client):
        await client.feed(framed(b"mute silently", b"b"))
        assert (connection.state, client.look()) == (State.MUTED, b"")
        await client.until(lambda: client.received == b"b")

    play(story)


@pytest.mark.parametrize("slow", [False, True], ids=["taken during the pause", "taken after it"])
def test_it_goes_on_once_the_pause_is_over_and_the_answer_has_left(play, slow):
    async def story(server, connection, client):
        server.pause_ms = 20 if slow else 3_600_000
        await client.feed(framed(b"mute large", b"b"))
        assert connection.state is State.SENDING
        if slow:
            deadline = now() + DEADLINE
            while connection._mute is not None:
                assert now() < deadline
                await asyncio.sleep(0)
            assert connection.state is State.SENDING
        else:
            await client.until(lambda: connection.state is State.MUTED)
            connection._mute.cancel()
            connection._unmute()
        await client.until(lambda: client.received[-1:] == b"b")

    play(story)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_muted_connection_ends_at_once(play, end):
    async def story(server, connection, client):
        await client.feed(framed(b"mute 3600000", b"b"))
        assert connection.state is State.MUTED
        getattr(connection, end)()
        await client.until(lambda: client.closed)
        assert (server.gone, connection.state, client.received) == (True, State.CLOSED, b"muted")
        assert connection._mute.cancelled()

    play(story)


def test_a_client_that_leaves_during_its_pause_is_noticed_after_it(play):
    async def story(server, connection, client):
        await client.feed(framed(b"mute 200"))
        client.sock.close()
        await settled()
        assert (server.gone, connection.state) == (False, State.MUTED)
        await server.left()

    play(story)


def test_a_second_request_may_mute_again(play):
    async def story(_server, connection, client):
        await client.feed(framed(b"mute 20", b"mute 20", b"b"))
        await client.until(lambda: client.received == b"mutedmutedb")
        await until_state(connection, State.SERVING)

    play(story)


def test_who_waits_for_a_turn_is_not_told_of_the_same_bytes_for_ever(play):
    async def story(server, connection, client):
        waiting = []
        connection._turns = SimpleNamespace(spent=TURN, latest=None, put_short=waiting.append, note=lambda: None)
        await client.feed(framed(b"a"))
        assert (connection.state, waiting) == (State.READABLE, [connection])
        deadline = now() + DEADLINE
        while connection._reading:
            assert now() < deadline
            await asyncio.sleep(0)
        assert connection._notifications < 100
        connection._turns = server.turns
        connection.go_on(now() + 1)
        assert (connection.state, connection._reading) == (State.SERVING, True)
        await client.feed(framed(b"b"))
        await client.until(lambda: client.received == b"ab")

    play(story)
