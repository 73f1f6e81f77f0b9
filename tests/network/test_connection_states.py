"""What a connection does in each of its states, without a socket."""

from __future__ import annotations

import asyncio
import struct

import pytest

from kbroker.handlers.registry import CloseConnection
from kbroker.network.connection import Connection, State


class Transport:
    """Notes what is done to it."""

    def __init__(self):
        self.written = b""
        self.reading = True
        self.ended = None

    def get_extra_info(self, _name):
        return ("::ffff:10.0.0.7", 4711)

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += bytes(data)

    def is_reading(self):
        return self.reading

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def close(self):
        self.ended = "close"

    def abort(self):
        self.ended = "abort"


class Waiting:
    """An answer that is not there yet."""

    def __init__(self, awaitable):
        self.awaitable = awaitable


class Server:
    """Admits everyone; answers a frame with itself, and "wait" once `answer` is done."""

    max_request_bytes = 1_000_000

    def __init__(self, admit=True):
        self.receive_buffer = memoryview(bytearray(256 * 1024))
        self.dispatcher = self
        self.answer = asyncio.get_running_loop().create_future()
        self.admit = admit
        self.gone = False

    def opened(self, _connection):
        return self if self.admit else None

    def closed(self, _connection):
        self.gone = True

    def run(self, _context, frame, out, _spill):
        if frame == b"wait":
            return Waiting(self.answer)
        if frame == b"nonsense":
            raise CloseConnection("nonsense")
        if frame == b"fault":
            raise ZeroDivisionError
        out += frame
        return None

    def finish(self, _pending, answer, error, out, _spill):
        out += answer if error is None else b"error"


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(connection, data):
    while data:
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


@pytest.fixture
def play():
    """Run a coroutine function with (server, connection, transport)."""

    def run(story, **options):
        async def main():
            server, transport = Server(**options), Transport()
            connection = Connection(server, asyncio.get_running_loop())
            connection.connection_made(transport)
            await story(server, connection, transport)

        asyncio.run(main())

    return run


async def settled():
    for _ in range(3):
        await asyncio.sleep(0)


def test_it_serves_what_comes(play):
    async def story(_server, connection, transport):
        feed(connection, framed(b"a", b"b") + framed(b"c")[:3])
        assert transport.written == b"ab"
        feed(connection, framed(b"c")[3:])
        assert transport.written == b"abc"
        assert (connection.state, connection.peer) == (State.SERVING, "10.0.0.7:4711")

    play(story)


def test_what_comes_while_it_works_waits_its_turn(play):
    async def story(server, connection, transport):
        feed(connection, framed(b"a", b"wait", b"b"))
        feed(connection, framed(b"c"))
        assert (connection.state, transport.written) == (State.WORKING, b"a")
        server.answer.set_result(b"answer")
        await settled()
        assert (connection.state, transport.written) == (State.SERVING, b"aanswerbc")

    play(story)


def test_it_stops_reading_while_much_waits(play):
    async def story(server, connection, transport):
        feed(connection, framed(b"wait"))
        feed(connection, framed(bytes(70_000)))
        assert not transport.reading
        server.answer.set_result(b"answer")
        await settled()
        assert transport.reading
        assert len(transport.written) == 6 + 70_000

    play(story)


def test_a_client_that_takes_no_answers_is_not_served(play):
    async def story(_server, connection, transport):
        connection.pause_writing()
        feed(connection, framed(b"a"))
        assert (connection.busy, transport.written) == (True, b"")
        connection.resume_writing()
        assert (connection.busy, transport.written) == (False, b"a")

    play(story)


def test_an_answer_that_comes_while_the_client_takes_none_does_not_let_it_go_on(play):
    async def story(server, connection, transport):
        feed(connection, framed(b"wait", b"b"))
        connection.pause_writing()
        server.answer.set_result(b"answer")
        await settled()
        assert (connection.busy, transport.written) == (True, b"answer")
        connection.resume_writing()
        assert transport.written == b"answerb"

    play(story)


def test_it_ends_once_the_last_answer_is_there(play):
    async def story(server, connection, transport):
        feed(connection, framed(b"wait", b"never run"))
        connection.close()
        feed(connection, framed(b"nor this"))
        assert (connection.state, transport.ended) == (State.ENDING, None)
        server.answer.set_result(b"answer")
        await settled()
        assert (connection.state, transport.ended, transport.written) == (State.CLOSED, "close", b"answer")

    play(story)


def test_it_ends_at_once_when_nothing_waits(play):
    async def story(_server, connection, transport):
        connection.close()
        assert (connection.state, transport.ended) == (State.CLOSED, "close")
        feed(connection, framed(b"a"))
        assert transport.written == b""

    play(story)


@pytest.mark.parametrize(
    ("last", "ended"), [(b"nonsense", "close"), (b"fault", "abort")], ids=["nonsense", "a fault of ours"]
)
def test_what_cannot_be_served_ends_it(play, last, ended):
    async def story(_server, connection, transport):
        feed(connection, framed(b"a", last, b"b"))
        assert (connection.state, transport.ended) == (State.CLOSED, ended)
        assert transport.written == (b"a" if ended == "close" else b"")

    play(story)


@pytest.mark.parametrize("after", [b"", b"wait"])
def test_an_impossible_frame_ends_it_once_what_came_before_is_answered(play, after):
    async def story(server, connection, transport):
        feed(connection, framed(b"a", *([after] if after else [])) + b"\xff\xff\xff\xff")
        server.answer.set_result(b"answer")
        await settled()
        assert (connection.state, transport.ended) == (State.CLOSED, "close")
        assert transport.written == (b"aanswer" if after else b"a")

    play(story)


def test_a_client_that_is_gone_is_worked_for_no_more(play):
    async def story(server, connection, transport):
        feed(connection, framed(b"wait"))
        connection.connection_lost(None)
        await settled()
        assert server.answer.cancelled()
        assert server.gone
        assert (connection.state, transport.written) == (State.CLOSED, b"")

    play(story)


def test_a_client_that_is_not_admitted_is_ended(play):
    async def story(_server, _connection, transport):
        assert transport.ended == "abort"

    play(story, admit=False)
