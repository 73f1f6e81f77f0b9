"""Website events from the logs of web servers, in the Combined Log Format of Apache httpd and nginx.

Owns the reading of files, plain or gzip, and the meaning of a line. The content of a file never causes an error: an
invalid line is returned as a `Malformed`, with the reason. A line needs time and memory in proportion to its length,
which is limited.

    host ident user [10/Oct/2000:13:55:36 -0700] "GET /x?y HTTP/1.0" 200 2326 "referrer" "user agent"

Fields after the user agent are ignored, because servers append fields of their own. Visitors are pseudonyms: keyed
hashes (BLAKE2b) of host and user agent. An event's id is a hash of its line and the line's number. So reading the same
file again gives the same ids, and two equal lines have different ids.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from calendar import timegm
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import BinaryIO, Final, NamedTuple

LONGEST_LINE: Final = 65_536
"""The maximum number of bytes of a line that is read. Web servers accept requests of about 8 kB."""

_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9998  # so that the time in UTC is before the year 10000, too
_MONTHS: Final = {
    name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)
}
_QUOTED: Final = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
# Possessive quantifiers prevent backtracking. The first text that looks like a time is used as the time.
_ENTRY: Final = re.compile(
    rb"(\S++) \S++ (?>.*? \[(\d\d)/([A-Z][a-z][a-z])/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)\] )"
    + _QUOTED
    + rb" (?:\d{3}|-) (?:\d++|-) "
    + _QUOTED
    + rb" "
    + _QUOTED
    + rb"(?: .*+)?",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_LETTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v", b"f": b"\f"}
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://[^/?#]*+")
_METHOD: Final = re.compile(r"[A-Za-z][A-Za-z-]*+")
_GZIP: Final = b"\x1f\x8b"
_EMPTY: Final = ("", "-")


class LogEvent(NamedTuple):
    """A line as an event: its time (ms since the epoch), its key, and its value (JSON)."""

    time_ms: int
    key: bytes
    value: bytes


class Malformed(NamedTuple):
    """An invalid line: its number in the file, starting at 1, and the reason."""

    number: int
    reason: str


class AccessLog:
    """Converts lines to events. `salt` is the key of the pseudonyms. With `query`, URLs keep the part after the `?`."""

    def __init__(self, salt: str = "", *, query: bool = False) -> None:
        self._key = blake2b(salt.encode("utf-8", "surrogateescape")).digest() if salt else b""
        self._query = query

    def read_file(self, path: str) -> Iterator[LogEvent | Malformed]:
        """Read a file, plain or gzip. Raises OSError if it cannot be opened or read."""
        with open(path, "rb") as file:
            yield from self.read(file)

    def read(self, file: io.BufferedReader) -> Iterator[LogEvent | Malformed]:
        """Read an open file, plain or gzip. If gzip cannot decompress it, the last item is a Malformed."""
        zipped = file.peek(len(_GZIP)).startswith(_GZIP)
        opened: BinaryIO = gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[assignment]
        number = 0
        try:
            while line := opened.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                    _pass_over(opened)
                    yield Malformed(number, f"longer than {LONGEST_LINE} bytes")
                else:
                    yield self.parse(line, number)
        except (EOFError, gzip.BadGzipFile, zlib.error) as err:
            yield Malformed(number + 1, f"the file cannot be unpacked from here on: {err}")

    def parse(self, line: bytes, number: int) -> LogEvent | Malformed:
        """Read one line, with or without its line end. `number` is the line's number in the file."""
        line = line.rstrip(b"\r\n")
        found = _ENTRY.fullmatch(line)
        if found is None:
            return Malformed(number, "not in the Combined Log Format")
        host, day, month, year, hour, minute, second, sign, hours, minutes, request, referrer, agent = found.groups()
        time_ms = _time_ms(year, month, day, (hour, minute, second), (sign, hours, minutes))
        if time_ms is None:
            return Malformed(number, "its time is none")
        url = self._url(_text(request))
        if url is None:
            return Malformed(number, "no request")
        source = _text(referrer)
        visitor = "a" + blake2b(host + b"\0" + agent, digest_size=8, key=self._key).hexdigest()
        event = {
            "id": blake2b(b"%d %s" % (number, line), digest_size=12).hexdigest(),
            "visitor": visitor,
            "time": datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "type": "page_view",
            "url": url,
            "referrer": None if source in _EMPTY else source,
        }
        return LogEvent(time_ms, visitor.encode(), json.dumps(event).encode())

    def _url(self, request: str) -> str | None:
        """Return the requested target, without the host of a proxy request. Return None if there is no request."""
        words = request.split(" ")
        if len(words) < 2 or not _METHOD.fullmatch(words[0]) or not words[1]:
            return None
        # Browsers should not send a target with blanks, but some browsers did.
        target = " ".join(words[1:-1]) if len(words) > 2 and words[-1].startswith("HTTP/") else " ".join(words[1:])
        absolute = _SCHEME.match(target)
        if absolute is not None:
            rest = target[absolute.end() :]
            target = rest if rest.startswith("/") else "/" + rest
        return target if self._query else target.partition("#")[0].partition("?")[0]


def _pass_over(file: BinaryIO) -> None:
    """Skip to the end of a line."""
    while True:
        rest = file.readline(LONGEST_LINE)
        if not rest or rest.endswith(b"\n"):
            return


def _time_ms(
    year: bytes, month: bytes, day: bytes, clock: tuple[bytes, bytes, bytes], zone: tuple[bytes, bytes, bytes]
) -> int | None:
    """Convert a local time and its offset from UTC to ms since the epoch. Return None for an invalid time."""
    sign, hours, minutes = zone[0], int(zone[1]), int(zone[2])
    hour, minute, second = map(int, clock)
    if month not in _MONTHS or hours > 14 or minutes > 59 or not _FIRST_YEAR <= int(year) <= _LAST_YEAR:
        return None
    try:
        # A leap second counts as the last second of its minute.
        local = datetime(int(year), _MONTHS[month], int(day), hour, minute, 59 if second == 60 else second)  # noqa: DTZ001
    except ValueError:
        return None
    ahead = (hours * 60 + minutes) * 60 * (-1 if sign == b"-" else 1)
    seconds = timegm(local.timetuple()) - ahead
    return seconds * 1000 if seconds >= 0 else None


def _text(raw: bytes) -> str:
    """Return a field without its escapes. Bytes that are not UTF-8 become replacement characters."""
    if b"\\" in raw:
        raw = _ESCAPE.sub(_unescaped, raw)
    return raw.decode("utf-8", "replace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    escaped = found[1]
    if len(escaped) == 3:
        return bytes([int(escaped[1:], 16)])
    return _LETTERS.get(escaped, escaped)
