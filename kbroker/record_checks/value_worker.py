"""The broker's side of the process that reads values with their schemas (value_process.py).

Owns the process: its start at the first use, its end after a minute without work, and its replacement after a value has
made it fail. Owns the list of schemas in the process, and the order of batches: the process reads each batch for a
short time, then the next.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from kbroker.protocol.wire import Buffer
from kbroker.record_checks.schema_lookup import SchemaText

log = logging.getLogger(__name__)

T = TypeVar("T")

_ROOT: Final = os.path.abspath(f"{os.path.dirname(__file__)}/../..")
_IDLE_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 60.0
"""The seconds within which an answer must arrive; the process has a much shorter limit of its own."""
_BATCH_SECONDS: Final = 5.0
_SECONDS_EACH: Final = 0.0001
"""The maximum time in seconds for the values of one batch together, and the additional seconds per value."""
_MOST_SCHEMAS: Final = 500
_MOST_CHARACTERS: Final = 16 << 20
"""The process keeps at most these numbers of schemas and of their characters. Beyond either, it drops all schemas."""
_MOST_DEADLY: Final = 100
_WRITTEN_AT_ONCE: Final = 256 << 10
_BUFFERED: Final = 1 << 20
_PREFIX: Final = 8
"""The number of bytes of the two sizes with which a message begins."""
_NOTHING: Final = -1
_OF_SCHEMA: Final = -2
"""Copies of two constants of value_process.py, because the broker does not import that module."""


class WorkerEnded(Exception):  # noqa: N818 - what has happened
    """The process has ended; `record` is the number of the record that it was reading, or negative."""

    def __init__(self, record: int) -> None:
        super().__init__()
        self.record = record


class TakesTooLong(Exception):  # noqa: N818 - what has happened
    """The values of a batch take longer than the limit."""


class ValueErrors(NamedTuple):
    """The errors of a batch's values: the first errors, and the number of all errors."""

    errors: list[tuple[int, str]]
    number: int


class _Process:
    """One process, and the streams to it."""

    def __init__(self) -> None:
        self.schemas: set[str] = set()
        self.characters = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        paths = [_ROOT, os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        self._marks = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        os.pwrite(self._marks.fileno(), _NOTHING.to_bytes(8, signed=True), 0)
        self._own, other = socket.socketpair()
        descriptors = (other.fileno(), self._marks.fileno())
        try:
            # A separate session, so that Ctrl-C in the terminal reaches only the broker.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kbroker.record_checks.value_process", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError:
            self._own.close()
            self._marks.close()
            raise
        finally:
            other.close()

    async def exchange(self, text: bytes, data: Buffer) -> tuple[bytes, bytes]:
        """Send the parts of a message, and return the parts of the answer. Raises OSError, EOFError."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._own, limit=_BUFFERED)
        reader, writer = self._streams
        head = len(text).to_bytes(4) + len(data).to_bytes(4) + text
        if len(data) <= _WRITTEN_AT_ONCE:
            writer.write(b"".join((head, data)))
            await writer.drain()
        else:
            writer.write(head)
            view = memoryview(data)
            for start in range(0, len(view), _WRITTEN_AT_ONCE):
                writer.write(view[start : start + _WRITTEN_AT_ONCE])
                await writer.drain()
        sizes = await reader.readexactly(_PREFIX)
        told = await reader.readexactly(int.from_bytes(sizes[:4]))
        return told, await reader.readexactly(int.from_bytes(sizes[4:]))

    def mark(self) -> int:
        """Return the number of the record that the process reads, or has read last."""
        return int.from_bytes(os.pread(self._marks.fileno(), 8, 0), signed=True)

    def hang_up(self) -> None:
        """Kill the process, to end an exchange that takes too long."""
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()  # the process ends immediately
        if self._streams is None:
            self._own.close()
        else:
            self._streams[1].transport.abort()
        self._marks.close()


class _Reading:
    """A batch that is being read. `is_left` means that nobody waits for the result any longer."""

    __slots__ = ("is_asking", "is_left", "job", "most_seconds")

    def __init__(self, job: int, most_seconds: float) -> None:
        self.job = job
        self.most_seconds = most_seconds
        self.is_asking = False
        self.is_left = False


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve an exception for which nobody waits, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


class ValueWorker:
    """Reads values for all topics of a broker. Its coroutines raise OSError if no process can be started."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._turn = asyncio.Lock()
        self._jobs = 0
        self._idle: asyncio.TimerHandle | None = None
        self._deadly: dict[str, None] = {}
        self._closed = False
        self._left: list[int] = []
        """Batches that the process may drop; the next message lists them."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """End the process."""
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        process, self._process = self._process, None
        if process is not None:
            process.end()

    async def names(self, schema: SchemaText) -> tuple[str, ...]:
        """Return the names that values of a schema can use. Return no names if the schema cannot be parsed."""
        if schema.digest in self._deadly:
            return ()
        try:
            answer, _ = await self._undisturbed(self._asked({"do": "names", "schema": schema.digest}, b"", [schema]))
        except WorkerEnded:
            return ()
        return tuple(answer.get("names", ()))

    async def check(
        self,
        data: Buffer,
        count: int,
        schemas: Mapping[bytes, SchemaText],
        *,
        of_keys: bool,
        skipped: Collection[int],
        most: int,
    ) -> ValueErrors:
        """Read the keys or values of `count` records with the schemas that their tokens name; skip other records.

        Returns at most `most` errors. Raises WorkerEnded if a value ended the process, and TakesTooLong.
        """
        usable = {token: each for token, each in schemas.items() if each.digest not in self._deadly}
        self._jobs += 1
        asked: dict[str, Any] = {
            "do": "check",
            "job": self._jobs,
            "count": count,
            "of_keys": of_keys,
            "schemas": {base64.b16encode(token).decode(): each.digest for token, each in usable.items()},
            "skipped": list(skipped),
            "most": most,
        }
        reading = _Reading(self._jobs, _BATCH_SECONDS + count * _SECONDS_EACH)
        answer = await self._undisturbed(self._read(reading, asked, data, list(usable.values())), reading)
        return ValueErrors([(index, text) for index, text in answer["errors"]], answer["count"])

    async def _read(self, reading: _Reading, asked: dict[str, Any], data: Buffer, schemas: list[SchemaText]) -> Any:
        """Let the process read a batch in slices; return the last answer."""
        loop = asyncio.get_running_loop()
        process: _Process | None = None
        spent = 0.0
        answer: Any = None
        try:
            while answer is None or not answer["done"]:
                async with self._turn:
                    if process is not None and process is not self._process:
                        raise WorkerEnded(_NOTHING)  # another batch ended the process
                    reading.is_asking = True
                    began = loop.time()
                    answer, process = await self._exchange(asked, data, schemas)
                    spent += loop.time() - began
                    reading.is_asking = False
                if not answer["done"] and (spent > reading.most_seconds or reading.is_left):
                    raise TakesTooLong
                asked, data, schemas = {"do": "continue", "job": reading.job}, b"", []
        finally:
            if process is not None and process is self._process and not answer["done"]:
                self._left.append(reading.job)
        return answer

    async def _undisturbed(self, work: Coroutine[Any, Any, T], reading: _Reading | None = None) -> T:
        """Return the result of work that exchanges messages with the process.

        The caller may be cancelled at any time, like its connection; a running exchange is still completed.
        """
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait((task,))
        finally:
            if not task.done():
                task.add_done_callback(_look_at)
                if reading is not None:
                    reading.is_left = True
                    if not reading.is_asking:
                        task.cancel()
        return task.result()

    def is_deadly(self, schema: SchemaText) -> bool:
        """Whether the parsing of a schema has ended the process. Values of such a schema are not read."""
        return schema.digest in self._deadly

    async def without(self, batch: Buffer, records: list[int], max_message_bytes: int) -> bytes:
        """Return a batch without the records that have these indexes. Raises WorkerEnded."""
        asked = {"do": "without", "records": records, "max_message_bytes": max_message_bytes}
        return (await self._undisturbed(self._asked(asked, batch, [])))[1]

    # -- messages

    async def _asked(self, asked: dict[str, Any], data: Buffer, schemas: list[SchemaText]) -> tuple[Any, bytes]:
        async with self._turn:
            answer, _ = await self._exchange(asked, data, schemas)
            return answer, answer.pop("rest", b"")

    async def _exchange(self, asked: dict[str, Any], data: Buffer, schemas: list[SchemaText]) -> tuple[Any, _Process]:
        """Send a message; return the answer, and the process that sent the answer.

        The caller must hold the lock `_turn`.
        """
        process = self._running()
        self._add_schemas(asked, process, schemas)
        if self._left:
            asked["left"], self._left = self._left, []
        text = json.dumps(asked).encode()
        loop = asyncio.get_running_loop()
        stuck = loop.call_later(_ANSWER_SECONDS, process.hang_up)
        try:
            told, rest = await process.exchange(text, data)
        except (OSError, EOFError):
            record = process.mark()
            if self._process is process:
                self._stop()
            if record <= _OF_SCHEMA:
                self._note_deadly(list(asked["new"])[_OF_SCHEMA - record], schemas)
            raise WorkerEnded(record) from None
        except BaseException:  # the loop ends during an exchange
            if self._process is process:
                self._stop()
            raise
        finally:
            stuck.cancel()
        self._idle = loop.call_later(_IDLE_SECONDS, self._stop)
        answer = json.loads(told)
        if rest:
            answer["rest"] = rest
        return answer, process

    def _running(self) -> _Process:
        if self._closed:
            raise OSError("the broker stops")
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._process is None:
            self._process = _Process()
        return self._process

    def _add_schemas(self, asked: dict[str, Any], process: _Process, schemas: list[SchemaText]) -> None:
        """Add to a message the schemas that the process does not have yet."""
        new = {each.digest: each for each in schemas if each.digest not in process.schemas}
        size = sum(len(each.text) + sum(map(len, each.references.values())) for each in new.values())
        if process.characters + size > _MOST_CHARACTERS or len(process.schemas) + len(new) > _MOST_SCHEMAS:
            asked["forget"] = True
            process.schemas.clear()
            process.characters = 0
            new = {each.digest: each for each in schemas}
        process.schemas.update(new)
        process.characters += size
        asked["new"] = {each.digest: [each.schema_type, each.text, dict(each.references)] for each in new.values()}

    def _note_deadly(self, digest: str, schemas: list[SchemaText]) -> None:
        """Record a schema whose parsing has ended the process."""
        text = next((each.text for each in schemas if each.digest == digest), "")
        log.warning("a schema cannot be parsed within its limits: %.100s", text)
        if len(self._deadly) >= _MOST_DEADLY:
            self._deadly.clear()
        self._deadly[digest] = None
