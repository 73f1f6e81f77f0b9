"""Responses leave in order, whatever the socket accepts; waiting ones take only the memory of their bytes."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket

import pytest

from kbroker.network.outbox import Outbox
from kbroker.network.turns import TURN, Turns


def outbox_of(sock, done, turns=None):
    loop = asyncio.get_running_loop()
    return Outbox(loop, turns or Turns(loop), sock, done)


class Range:
    """A range of a file, which notes whether its descriptor was asked for."""

    def __init__(self, fd, position, size):
        self._fd, self.position, self.size = fd, position, size
        self.opened = False

    @property
    def fd(self):
        self.opened = True
        return self._fd

    def __len__(self):
        return self.size


async def read(sock, count):
    loop = asyncio.get_running_loop()
    parts = []
    while count:
        data = await asyncio.wait_for(loop.sock_recv(sock, min(count, 100_000)), 10)
        assert data
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_bytes_and_ranges_leave_in_order(tmp_path, seed):
    rng = random.Random(seed)
    content = rng.randbytes(3_000_000)
    (tmp_path / "f").write_bytes(content)

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        fd = os.open(tmp_path / "f", os.O_RDONLY)
        ended = []
        outbox = outbox_of(ours, ended.append)
        expected = b""
        for _ in range(20):
            if rng.random() < 0.5:
                data = rng.randbytes(rng.choice([1, 100, 300_000]))
                outbox.send(bytearray(data))
                expected += data
            else:
                pieces = []
                for _ in range(rng.randrange(1, 30)):
                    head = rng.randbytes(20)
                    position = rng.randrange(len(content))
                    size = min(rng.choice([1, 5000, 400_000]), len(content) - position)
                    pieces += [head, Range(fd, position, size)]
                    expected += head + content[position : position + size]
                outbox.send_pieces(pieces)
        waited = outbox.waiting
        assert outbox.left > 0
        assert await read(theirs, len(expected)) == expected
        for _ in range(3):
            await asyncio.sleep(0)
        assert waited
        assert ended == [None]
        assert (outbox.waiting, outbox.left, outbox.in_memory) == (False, 0, 0)
        os.close(fd)
        ours.close()
        theirs.close()

    asyncio.run(story())


def test_ranges_that_wait_take_neither_memory_nor_descriptors(tmp_path):
    (tmp_path / "f").write_bytes(bytes(1_000_000))

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fd = os.open(tmp_path / "f", os.O_RDONLY)
        outbox = outbox_of(ours, lambda _: None)
        ranges = [Range(fd, 0, 1_000_000) for _ in range(50)]
        outbox.send_pieces([part for each in ranges for part in (b"head", each)])
        assert outbox.left > 48_000_000
        assert outbox.in_memory < 20_000
        assert not any(each.opened for each in ranges[10:]), "nor a descriptor, before their turn comes"
        outbox.close()
        os.close(fd)
        ours.close()
        theirs.close()

    asyncio.run(story())


@pytest.mark.parametrize("waiting", [False, True])
def test_a_client_that_is_gone_is_told(waiting):
    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ended = []
        outbox = outbox_of(ours, ended.append)
        if waiting:
            outbox.send(bytearray(5_000_000))
            theirs.close()
            deadline = asyncio.get_running_loop().time() + 10
            while not ended:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0)
            assert isinstance(ended[0], OSError)
        else:
            theirs.close()
            with pytest.raises(OSError):
                outbox.send(bytearray(10))
        ours.close()

    asyncio.run(story())


def test_a_file_that_was_cut_off_ends_the_connection(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(bytes(10))
    clock = itertools.count(100.0, 0.000_001)
    monkeypatch.setattr("kbroker.network.outbox.now", lambda: next(clock))

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fd = os.open(tmp_path / "f", os.O_RDONLY)
        with pytest.raises(OSError, match="shorter"):
            outbox_of(ours, lambda _: None).send_pieces([b"head", Range(fd, 10, 5000)])
        for size in (5000, 500_000):
            with pytest.raises(OSError, match="shorter"):
                outbox_of(ours, lambda _: None).send_pieces([b"head", Range(fd, 0, size)])
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        outbox_of(ours, ended.set_result).send_pieces([bytes(4 << 20), Range(fd, 0, 5000)])
        theirs.setblocking(False)
        while not ended.done():
            reading = asyncio.ensure_future(loop.sock_recv(theirs, 1 << 20))
            await asyncio.wait((reading, ended), timeout=10, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
        assert "shorter" in str(ended.result())
        os.close(fd)
        ours.close()
        theirs.close()

    asyncio.run(story())


def test_a_socket_told_of_in_a_turn_that_is_used_up_has_its_turn_later(monkeypatch):
    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        ended, turns = [], Turns(loop)
        outbox = outbox_of(ours, ended.append, turns)
        outbox.send(bytearray(3_000_000))
        assert outbox.waiting
        turns._scheduled = True  # so that no turn ends meanwhile
        turns.spent = TURN
        got = len(await read(theirs, 100_000))
        before = outbox.left
        for _ in range(3):
            await asyncio.sleep(0)
            outbox._writable()
        assert outbox.left == before
        turns._turn()
        assert outbox.left < before
        assert turns.spent == 0.0
        await read(theirs, 3_000_000 - got)
        assert ended == [None]
        turns.put(outbox)  # it is too late for a turn: nothing is left to send
        turns._turn()
        ours.close()
        theirs.close()

    asyncio.run(story())


def test_the_loop_is_asked_once_for_answers_that_wait_one_after_another():
    calls = []

    class Loop:
        def add_writer(self, fd, callback):
            calls.append("add")
            self.tell = callback

        def remove_writer(self, fd):
            calls.append("remove")

    async def story():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.settimeout(10)
            answers = [bytearray(4_000_000), bytearray(4_000_000)]

            def done(error):
                assert error is None
                if answers:
                    outbox.send(answers.pop())

            loop = Loop()
            turns = Turns(asyncio.get_running_loop())
            outbox = Outbox(loop, turns, ours, done)
            outbox.send(answers.pop())
            left = 8_000_000
            while left:
                left -= len(theirs.recv(1_000_000))
                turns.spent = 0.0  # each time in a new turn of the loop
                if calls[-1] == "add":
                    loop.tell()
            assert not outbox.waiting
            assert calls == ["add", "remove"]

    asyncio.run(story())


@pytest.mark.parametrize(("takes", "crowded"), [(True, False), (False, False), (True, True)])
def test_a_client_that_takes_at_once_is_not_waited_for_by_the_loop(tmp_path, monkeypatch, takes, crowded):
    """But not while others read, or if it accepts nothing; test_full_socket.py tests how long it is retried."""
    (tmp_path / "f").write_bytes(bytes(1_000_000))

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fd = os.open(tmp_path / "f", os.O_RDONLY)
        real, got = os.sendfile, 0

        def sendfile(*args):
            nonlocal got
            if takes and patience.since:
                got += len(theirs.recv(1_000_000))
            return real(*args)

        monkeypatch.setattr(os, "sendfile", sendfile)
        clock = itertools.count(100.0, 0.000_001)
        monkeypatch.setattr("kbroker.network.outbox.now", lambda: next(clock))
        turns = Turns(asyncio.get_running_loop())
        if crowded:
            turns.serves(-2, 100.0)
        outbox = outbox_of(ours, lambda _: None, turns)
        patience = outbox._patience
        outbox.send_pieces([b"head", Range(fd, 0, 1_000_000)])
        assert outbox.waiting is (crowded or not takes)
        assert (got > 0) is (takes and not crowded)
        outbox.close()
        os.close(fd)
        ours.close()
        theirs.close()

    asyncio.run(story())


@pytest.mark.parametrize(("takes", "last"), [(1000, False), (100_000, True)])
def test_a_client_that_takes_little_by_little_is_left_to_the_loop(tmp_path, monkeypatch, takes, last):
    """A client that frees a little now and then would be retried for the complete slice, each time."""
    (tmp_path / "f").write_bytes(bytes(1_000_000))

    async def story():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fd = os.open(tmp_path / "f", os.O_RDONLY)
        clock = itertools.count(100.0, 0.000_001)
        monkeypatch.setattr("kbroker.network.outbox.now", lambda: next(clock))
        answers = [takes, BlockingIOError, BlockingIOError]

        def sendfile(*_args):
            answer = answers[asked[0] % 3]
            asked[0] += 1
            if answer is BlockingIOError:
                raise BlockingIOError
            return answer

        asked = [0]
        monkeypatch.setattr(os, "sendfile", sendfile)
        outbox = outbox_of(ours, lambda _: None)
        outbox.send_pieces([Range(fd, 0, 10_000_000)])
        assert outbox.waiting
        assert (asked[0] > 100) is last, "by the budget, or because it was too little for 50 us"
        outbox.close()
        os.close(fd)
        ours.close()
        theirs.close()

    asyncio.run(story())
