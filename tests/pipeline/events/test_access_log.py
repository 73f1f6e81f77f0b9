"""Web servers' logs as events."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.pipeline.events.access_log import LONGEST_LINE, AccessLog, LogEvent, Malformed
from tests.tries import tries

LINE = (
    b'127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a/b?q=1 HTTP/1.0" 200 2326'
    b' "http://x.example/s" "Moz/4 (X11)"'
)
AT_MS = 971_211_336_000


def parse(line: bytes, number: int = 1, log: AccessLog | None = None) -> tuple[LogEvent, Any]:
    found = (log or AccessLog()).parse(line, number)
    assert isinstance(found, LogEvent), found
    return found, json.loads(found.value)


def read(content: bytes) -> list[LogEvent | Malformed]:
    return list(AccessLog().read(io.BufferedReader(io.BytesIO(content))))  # type: ignore[arg-type]


def with_request(request: bytes) -> bytes:
    return LINE.replace(b"GET /a/b?q=1 HTTP/1.0", request)


def test_line_becomes_an_event() -> None:
    found, event = parse(LINE + b"\n")
    assert found.time_ms == AT_MS
    assert found.key == event["visitor"].encode()
    assert {name: event[name] for name in ("time", "type", "url", "referrer")} == {
        "time": "2000-10-10T20:55:36.000Z",
        "type": "page_view",
        "url": "/a/b",
        "referrer": "http://x.example/s",
    }
    assert list(event) == ["id", "visitor", "time", "type", "url", "referrer"]


def test_id_is_of_the_line_and_its_place() -> None:
    ids = [
        parse(line, number)[1]["id"] for line, number in ((LINE, 1), (LINE, 2), (LINE + b"\r\n", 1), (LINE + b" x", 1))
    ]
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3


def test_visitor_is_a_pseudonym_of_host_and_agent() -> None:
    def visitor(line: bytes, salt: str = "") -> str:
        return str(parse(line, log=AccessLog(salt))[1]["visitor"])

    assert visitor(LINE) == visitor(with_request(b"GET / HTTP/1.1"))
    others = [
        visitor(LINE.replace(b"127.0.0.1", b"127.0.0.2")),
        visitor(LINE.replace(b"Moz", b"Foz")),
        visitor(LINE, "s"),
    ]
    assert len({visitor(LINE), *others}) == 4
    assert visitor(LINE, "s") == others[2]
    assert b"127.0.0.1" not in parse(LINE)[0].value


@pytest.mark.parametrize(
    ("request_line", "url", "whole"),
    [
        (b"GET /x?a=b&c HTTP/1.1", "/x", "/x?a=b&c"),
        (b"GET /x#f HTTP/1.1", "/x", "/x#f"),
        (b"GET / HTTP/2.0", "/", "/"),
        (b"GET /x", "/x", "/x"),
        (b"GET /a b c HTTP/1.1", "/a b c", "/a b c"),
        (b"OPTIONS * HTTP/1.1", "*", "*"),
        (b"GET http://shop.example:80/x?y HTTP/1.1", "/x", "/x?y"),
        (b"GET http://shop.example?y HTTP/1.1", "/", "/?y"),
        (rb"GET /\"quoted\"\\ HTTP/1.1", '/"quoted"\\', '/"quoted"\\'),
        (rb"GET /\x22nginx\xc3\xa4 HTTP/1.1", '/"nginxä', '/"nginxä'),
        (b"GET /\xff\xfe HTTP/1.1", "/\ufffd\ufffd", "/\ufffd\ufffd"),
    ],
)
def test_what_was_asked_for(request_line: bytes, url: str, whole: str) -> None:
    assert parse(with_request(request_line))[1]["url"] == url
    assert parse(with_request(request_line), log=AccessLog(query=True))[1]["url"] == whole


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace(b"127.0.0.1", b"2001:db8::ff00:42:8329"),
        LINE.replace(b"127.0.0.1", b"host.example"),
        LINE.replace(b"frank", b"-"),
        LINE.replace(b"frank", b"john [x] doe"),
        LINE.replace(b" 200 2326 ", b" 304 - "),
        LINE.replace(b'"Moz/4 (X11)"', b'"-"'),
        LINE.replace(b'"Moz/4 (X11)"', rb'"say \"hi\""'),
        LINE + b' "10.0.0.1, 10.0.0.2" 0.003',
    ],
)
def test_lines_that_servers_write(line: bytes) -> None:
    assert parse(line)[0].time_ms == AT_MS


def test_no_referrer_is_null() -> None:
    assert parse(LINE.replace(b"http://x.example/s", b"-"))[1]["referrer"] is None
    assert parse(LINE.replace(b"http://x.example/s", b""))[1]["referrer"] is None


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (b"29/Feb/2024:23:59:60 +0000", "2024-02-29T23:59:59.000Z"),
        (b"01/Jan/2024:00:10:00 +0530", "2023-12-31T18:40:00.000Z"),
    ],
)
def test_times_are_in_utc(text: bytes, time: str) -> None:
    assert parse(LINE.replace(b"10/Oct/2000:13:55:36 -0700", text))[1]["time"] == time


@pytest.mark.parametrize(
    "text",
    [
        b"30/Feb/2024:10:00:00 +0000",
        b"10/Okt/2000:13:55:36 -0700",
        b"10/Oct/2000:24:00:00 +0000",
        b"10/Oct/2000:13:55:61 +0000",
        b"10/Oct/1969:13:55:36 +0000",
        b"01/Jan/1970:00:00:00 +0100",
        b"10/Oct/9999:13:55:36 +0000",
        b"10/Oct/2000:13:55:36 +9900",
        b"10/Oct/2000:13:55:36 +0075",
    ],
)
def test_times_that_are_none(text: bytes) -> None:
    found = AccessLog().parse(LINE.replace(b"10/Oct/2000:13:55:36 -0700", text), 5)
    assert found == Malformed(5, "its time is none")


@pytest.mark.parametrize("request_line", [b"-", b"", rb"\x16\x03\x01 \x00", b"GET", b"GET  HTTP/1.1"])
def test_lines_without_a_request(request_line: bytes) -> None:
    assert AccessLog().parse(with_request(request_line), 5) == Malformed(5, "no request")


@pytest.mark.parametrize("line", [b"", b"\n", b"hello", LINE[:-1], LINE[: LINE.rindex(b' "')], LINE.replace(b"[", b"")])
def test_lines_that_are_no_entries(line: bytes) -> None:
    assert AccessLog().parse(line, 5) == Malformed(5, "not in the Combined Log Format")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_file_plain_and_packed(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(pack(LINE + b"\nbroken\n" + LINE))
    found = list(AccessLog().read_file(str(path)))
    assert found[1] == Malformed(2, "not in the Combined Log Format")
    assert [found[0], found[2]] == [parse(LINE, 1)[0], parse(LINE, 3)[0]]


def test_long_lines_are_passed_over() -> None:
    long = LINE + b" " + b"x" * (LONGEST_LINE * 3)
    found = read(LINE + b"\n" + long + b"\n" + LINE + b"\n" + long)
    reason = f"longer than {LONGEST_LINE} bytes"
    assert found == [parse(LINE, 1)[0], Malformed(2, reason), parse(LINE, 3)[0], Malformed(4, reason)]


def test_line_of_the_most_bytes_is_read() -> None:
    line = LINE + b" " + b"x" * (LONGEST_LINE - len(LINE) - 1)
    assert len(line) == LONGEST_LINE
    assert len([event for event in read(line + b"\n" + line) if isinstance(event, LogEvent)]) == 2


def test_packed_file_that_is_cut_off_or_changed() -> None:
    packed = gzip.compress(b"".join(LINE.replace(b"/a/b", b"/%d" % n) + b"\n" for n in range(5000)))
    for broken in (packed[: len(packed) // 2], packed[:3], packed[:-8] + bytes(8), packed + b"no gzip"):
        *before, last = read(broken)
        assert isinstance(last, Malformed)
        assert "cannot be unpacked" in last.reason
        assert all(isinstance(found, LogEvent) for found in before)


def test_empty_file() -> None:
    assert read(b"") == []


def hostile() -> Iterator[bytes]:
    time = b" [10/Oct/2000:13:55:36 -0700] "
    yield b"h i u" + (time + b'"') * (LONGEST_LINE // 32)
    yield b"h i u" + time + b'"' + b"\\" * (LONGEST_LINE - 100)
    yield b"h i u" + time + b'"' + b'\\"' * (LONGEST_LINE // 3)
    yield b"h i " + b" [" * (LONGEST_LINE // 3)
    yield LINE[:-1] + b"\\x" * (LONGEST_LINE // 3)
    yield b" " * LONGEST_LINE
    yield b'"' * LONGEST_LINE


@pytest.mark.parametrize("line", list(hostile()), ids=range(7))
def test_lines_that_make_patterns_try_for_ever(line: bytes) -> None:
    """A backtracking pattern would take minutes for the first of these, and forever for the third."""
    for number in range(20):
        assert isinstance(AccessLog().parse(line, number), Malformed)


PIECES = st.sampled_from(
    [b" ", b'"', b"\\", b"[", b"]", b"-", b"\n", b"\r", b"\x00", b"\xff", b"9", b"/", b":", LINE, LINE[30:70]]
)


@settings(max_examples=tries(300))
@given(st.lists(st.one_of(PIECES, st.binary(max_size=8))).map(b"".join))
def test_nothing_in_a_file_fails(content: bytes) -> None:
    found = read(content)
    for event in found:
        if isinstance(event, LogEvent):
            assert json.loads(event.value)["visitor"].encode() == event.key
            assert event.time_ms >= 0
        else:
            assert event.reason
    if not content.startswith(b"\x1f\x8b"):
        assert len(found) == content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))


@settings(max_examples=tries(300))
@given(st.integers(0, len(LINE) - 1), st.binary(max_size=4), st.integers(0, 4))
def test_lines_with_a_part_changed(place: int, piece: bytes, gone: int) -> None:
    AccessLog().parse(LINE[:place] + piece + LINE[place + gone :], 1)
