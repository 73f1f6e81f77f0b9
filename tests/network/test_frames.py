"""Frames are split the same however the stream is split into reads; no memory is kept for a mere claim."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.network.frames import BadFrame, FrameBuffer

LIMIT = 300_000


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


class Reader:
    """Reads like a connection: into the kept bytes if there are any, else into its own buffer."""

    def __init__(self, limit=LIMIT):
        self.buffer = FrameBuffer(limit)
        self.frames = []

    def read(self, data):
        while data:
            if self.buffer.kept is None:
                size, whole = len(data), memoryview(bytearray(data))
            else:
                room = self.buffer.room()
                size = min(len(room), len(data))
                assert size > 0
                room[:size] = data[:size]
                whole = self.buffer.received(size)
            data = data[size:]
            if whole is not None:
                self.frames += [bytes(frame) for frame in self.buffer.cut(whole)]
                if self.buffer.consumed < len(whole):
                    self.buffer.keep(whole[self.buffer.consumed :])
            if self.buffer.wanted:
                self.buffer.grow(self.buffer.wanted)


BODIES = st.lists(st.binary(max_size=40) | st.integers(0, 200_000).map(bytes), max_size=8)


@given(BODIES, st.data())
def test_any_cutting_of_the_stream_gives_the_same_frames(bodies, data):
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = Reader()
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.read(stream[start:stop])
    assert reader.frames == bodies
    assert reader.buffer.kept is None


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_byte_by_byte(bodies):
    reader = Reader()
    for byte in framed(*bodies):
        reader.read(bytes([byte]))
    assert reader.frames == bodies


@given(BODIES, st.integers(0, 8), st.data())
def test_what_waits_is_kept_in_order(bodies, after, data):
    """A busy connection keeps incoming bytes, in any pieces, and splits them later."""
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    buffer = FrameBuffer(LIMIT)
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer.keep(memoryview(stream)[start:stop])
    kept = buffer.take()
    taken = []
    for frame in buffer.cut(kept):
        taken.append(bytes(frame))
        if len(taken) == after:
            break
    assert taken == (bodies[:after] if after else bodies)
    assert bytes(kept[buffer.consumed :]) == framed(*bodies[len(taken) :])


@pytest.mark.parametrize("size", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_frames_before_an_impossible_one_are_handed_out(size):
    reader = Reader()
    reader.read(framed(b"first"))
    with pytest.raises(BadFrame, match=f"a frame of {size} bytes"):
        reader.read(framed(b"second") + struct.pack(">i", size))


def test_an_impossible_size_is_found_as_soon_as_it_is_there():
    reader = Reader()
    reader.read(b"\x7f")
    reader.read(b"\xff\xff")
    with pytest.raises(BadFrame):
        reader.read(b"\xff")


def test_a_frame_at_the_limit_is_taken():
    reader = Reader()
    reader.read(framed(bytes(LIMIT)))
    assert reader.frames == [bytes(LIMIT)]


def test_a_claim_takes_no_memory():
    """The memory grows with the received bytes: first for a producer's default maximum, then doubling."""
    reader = Reader(limit=100 << 20)
    reader.read(struct.pack(">i", 100 << 20))
    assert len(reader.buffer.kept) <= 64 * 1024
    reader.read(bytes(100_000))
    assert len(reader.buffer.kept) <= 1_200_000
    reader.read(bytes(2_000_000))
    assert reader.buffer.granted <= 5_000_000


def test_a_frame_larger_than_a_producers_is_received_in_place():
    """Only the bytes from before its size was known are copied: each further copy would hold everybody up."""
    reader = Reader(limit=100 << 20)
    body = bytes(range(256)) * 100_000
    stream, objects = framed(body), []
    for start in range(0, len(stream), 500_000):
        reader.read(stream[start : start + 500_000])
        if reader.buffer.kept is not None and not any(reader.buffer.kept is each for each in objects):
            objects.append(reader.buffer.kept)
    assert reader.frames == [body]
    assert len(objects) <= 3
