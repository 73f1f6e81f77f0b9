"""New records for a browser that follows a topic: server-sent events.

Owns the pace. Waiting for records uses no thread. A reader that does not receive its data blocks no other reader, and
is disconnected after half a minute. If records arrive too fast, some are skipped, with a notice. The number of readers
is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kbroker.admin.errors import AdminError, Unreachable
from kbroker.admin.fetching import Found, fetch
from kbroker.admin.partition_offsets import known_offsets_at
from kbroker.console.asking import Busy, Slow
from kbroker.console.console import Console
from kbroker.console.records.search import Search
from kbroker.console.render import environment

LISTENERS: Final = 20
_READ_S: Final = 0.4
_READ_AGAIN_S: Final = 2.0
_QUIET_S: Final = 15.0
_MOST_AT_ONCE: Final = 50
_BYTES_AT_ONCE: Final = 1024 * 1024
_LATEST: Final = -1
log = logging.getLogger(__name__)
_template = environment().get_template("record_rows.html")


class Tail(Response):
    """A response that continues until its reader disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self, console: Console, search: Search, row: Callable[[Found], dict[str, Any]], at: dict[int, int]
    ) -> None:
        if console.listening >= LISTENERS:
            raise Busy(f"{LISTENERS} pages already follow records; close one")
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._console = console
        self._search = search
        self._row = row
        self._at = {partition: offset for partition, offset in at.items() if partition in search.partitions}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the reader disconnects, or the console ends."""
        del scope
        self._console.listening += 1
        writing = asyncio.ensure_future(self._write(send))
        disconnected = asyncio.ensure_future(_disconnected(receive))
        ends = [writing, disconnected, asyncio.ensure_future(self._console.ending.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._console.listening -= 1
            for each in ends:
                each.cancel()
            for outcome in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, OSError):
                    log.error("following records ended", exc_info=outcome)
        with contextlib.suppress(Exception):  # the status was already sent, so the response can only end
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send(send, b"retry: 2000\n\n")
        quiet = 0.0
        while True:
            pause = _READ_S
            try:
                events = await self._console.ask(self._read)
            except (Unreachable, Slow, Busy):
                events, pause = [], _READ_AGAIN_S
            except AdminError as error:
                await _send(send, _event("trouble", str(error)))
                return
            for each in events:
                await _send(send, each)
            quiet = 0.0 if events else quiet + pause
            if quiet >= _QUIET_S:
                quiet = 0.0
                await _send(send, b": here\n\n")
            await asyncio.sleep(pause)

    def _read(self, admin: Any) -> list[bytes]:
        return list(self._events(admin))

    def _events(self, admin: Any) -> Iterator[bytes]:
        """Yield the records since the last call."""
        topic = self._search.topic
        led = {(topic.name, each.partition_index): each.leader_id for each in topic.partitions if each.leader_id >= 0}
        led = {key: leader for key, leader in led.items() if key[1] in self._search.partitions}
        ends = known_offsets_at(admin, led, _LATEST)
        wanted = {}
        skipped = 0
        for key, end in ends.items():
            at = self._at.setdefault(key[1], end)
            if end - at > _MOST_AT_ONCE:
                skipped += end - at - _MOST_AT_ONCE
                at = self._at[key[1]] = end - _MOST_AT_ONCE
            if at < end:
                wanted[key] = at
        if not wanted:
            return
        found: list[Found] = []
        ids = {topic.name: topic.topic_id}
        pieces = fetch(admin, led, wanted, ids, committed=self._search.committed, most_bytes=_BYTES_AT_ONCE)
        for key, piece in pieces.items():
            self._at[key[1]] = max(piece.next_offset, self._at[key[1]])
            found += [each for each in piece.records if self._search.wanted(each)]
        if skipped and not self._search.wanted:
            yield _event("skipped", f"{skipped:,}")
        if found:
            found.sort(key=lambda each: (each.timestamp, each.partition, each.offset), reverse=True)
            rows = [self._row(each) for each in found[:_MOST_AT_ONCE]]
            place = ",".join(f"{partition}:{offset}" for partition, offset in sorted(self._at.items()))
            yield _event("records", _template.render(rows=rows, fresh=True), place)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: str, number: str | None = None) -> bytes:
    lines = [f"event: {name}", *(f"data: {line}" for line in data.splitlines() or [""])]
    if number is not None:
        lines.append(f"id: {number}")
    return ("\n".join(lines) + "\n\n").encode("utf-8", "backslashreplace")
