"""A proxy that disturbs single requests, for a broker that has no faults of its own.

Owns a TCP proxy in a thread. It splits the clients' bytes into frames, and reads only the API of each. Never changes a
byte.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Final, Self

from compat_tests.harness.brokers import free_port

_HOST: Final = "127.0.0.1"
_SIZE: Final = struct.Struct(">i")
_KEY: Final = struct.Struct(">h")


class Proxy:
    """A proxy in front of one broker, whose `upstream` port may be set later; a context manager."""

    def __init__(self) -> None:
        self.port = free_port()
        self.upstream = 0
        self.hits = 0
        self._plans: deque[tuple[int, str, float]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._refuses = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def meet(self, api: int, what: str, seconds: float = 0.0) -> None:
        """Disturb the next request of an API.

        "request", "before", "middle" and "after" close its connection as the fault `disconnect` does, "drop" loses the
        response, "delay" keeps the request back for some seconds.
        """
        self.hits = 0
        self._plans.append((api, what, seconds))

    def refuse(self, *, refuses: bool) -> None:
        """Close new connections immediately, or accept them again."""
        self._refuses = refuses

    def clear(self) -> None:
        self._plans.clear()
        self._refuses = False

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, _HOST, self.port)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for each in list(self._tasks):
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._refuses:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(_HOST, self.upstream)
        asked: asyncio.Queue[str] = asyncio.Queue()
        answers = asyncio.ensure_future(self._answer(there, writer, asked))
        try:
            while not answers.done():
                frame = await _frame(reader)
                what, seconds = self._plan(_KEY.unpack_from(frame, _SIZE.size)[0])
                if what == "request":
                    break
                if what == "delay":
                    await asyncio.sleep(seconds)
                asked.put_nowait(what)
                back.write(frame)
                await back.drain()
        finally:
            answers.cancel()
            with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await answers
            back.close()

    async def _answer(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Queue[str]
    ) -> None:
        """Send responses on, in the order of the requests, until one must be cut off."""
        while True:
            try:
                frame = await _frame(there)
            except (OSError, asyncio.IncompleteReadError):
                writer.close()
                raise
            what = await asked.get()
            if what == "drop":
                await asyncio.Event().wait()  # the responses after it are lost too
            writer.write(frame[: {"before": 0, "middle": len(frame) // 2}.get(what, len(frame))])
            await writer.drain()
            if what in ("before", "middle", "after"):
                writer.close()
                return

    def _plan(self, api: int) -> tuple[str, float]:
        if self._plans and self._plans[0][0] == api:
            _, what, seconds = self._plans.popleft()
            self.hits += 1
            return what, seconds
        return "", 0.0


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_SIZE.size)
    return head + await reader.readexactly(_SIZE.unpack(head)[0])
