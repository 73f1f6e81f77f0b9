"""The process that reads values with their schemas: run as a module, never imported by the broker.

The libraries of the formats are written in C and Rust. They keep the interpreter's lock while they work. With hostile
data they may be slow, use much memory, or crash. In this process they delay no other work, and a crash does not end the
broker. A single value gets at most half a second of processor time, and the process gets at most a gigabyte of memory.
A shared file contains the number of the record that is being read, so that the broker knows which record ended the
process.

A message consists of the sizes of its two parts (u32, u32), JSON, and data. The arguments are the descriptors of a
socket and of the shared file.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from kbroker.log.cleaner.batch_filter import without_records
from kbroker.protocol.records import parse_header
from kbroker.record_checks.schema_tokens import tokens_and_data
from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue, Schema
from kbroker.schema_registry.formats.parsing import parse

SIZES: Final = struct.Struct(">II")
MARK: Final = struct.Struct(">q")
NOTHING: Final = -1
OF_SCHEMA: Final = -2
"""Values in place of a record's number.

The first means that nothing is being read. The second means that the first of a message's new schemas is being parsed;
lower numbers stand for the message's other schemas.
"""
_RECORD_SECONDS: Final = 0.5
_SCHEMA_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1 << 30
_SLICE_SECONDS: Final = 0.01
"""The seconds for which one batch is read before other batches get a turn."""
_TIMED_BYTES: Final = 256
"""Values up to this number of bytes share one time limit with their neighbours."""
_TIMED_EACH: Final = 32


class _Job:
    """A batch that is read in slices."""

    def __init__(self, asked: Any, data: bytes, known: Mapping[str, Schema | str]) -> None:
        self.schemas = {base64.b16decode(token): known[digest] for token, digest in asked["schemas"].items()}
        self.skipped = frozenset(asked["skipped"])
        self.most = asked["most"]
        self.fields = enumerate(tokens_and_data(data, asked["count"], of_keys=asked["of_keys"]))
        self.errors: list[tuple[int, str]] = []
        self.error_count = 0


class Worker:
    """Answers messages. `shared` contains the number of the record that is being read."""

    def __init__(self, shared: Any) -> None:
        self._mark = shared
        self._schemas: dict[str, Schema | str] = {}
        self._jobs: dict[int, _Job] = {}

    def answer(self, asked: Any, data: bytes) -> tuple[Any, bytes]:
        """Return the answer to a message."""
        for job in asked.get("left", ()):
            self._jobs.pop(job, None)
        if asked.get("forget"):
            self._schemas.clear()
        for index, (digest, (schema_type, text, references)) in enumerate(asked.get("new", {}).items()):
            self._begin(OF_SCHEMA - index, _SCHEMA_SECONDS)
            self._schemas[digest] = self._parsed(schema_type, text, references)
        match asked["do"]:
            case "names":
                schema = self._schemas[asked["schema"]]
                return ({"error": schema} if isinstance(schema, str) else {"names": schema.names}), b""
            case "check":
                self._jobs[asked["job"]] = _Job(asked, data, self._schemas)
                return self._slice(asked["job"]), b""
            case "continue":
                return self._slice(asked["job"]), b""
            case _:
                batch = memoryview(data)
                rest = without_records(batch, parse_header(batch), asked["records"], asked["max_message_bytes"])
                return {}, bytes(rest)

    def _parsed(self, schema_type: str, text: str, references: dict[str, str]) -> Schema | str:
        try:
            schema = parse(schema_type, text, references, is_new=False)
            schema.names  # noqa: B018 - whatever it takes to make them, it is bounded here
            if schema_type == "PROTOBUF":
                return schema
            schema.check_value(b"")  # make the preparations of the first value now
        except (InvalidSchema, ImportError, RecursionError) as error:
            return str(error)[:300] or type(error).__name__
        except (InvalidValue, MemoryError):
            pass
        return schema

    def mark(self, record: int) -> None:
        """Write to the shared file the number of the record that is being read."""
        MARK.pack_into(self._mark, 0, record)

    def _begin(self, record: int, seconds: float) -> None:
        self.mark(record)
        signal.setitimer(signal.ITIMER_PROF, seconds)

    def _slice(self, number: int) -> Any:
        """Read values for a short time; return their errors, and whether values remain."""
        job = self._jobs[number]
        until = time.perf_counter() + _SLICE_SECONDS
        schemas = job.schemas
        left = 0
        is_done = True
        for index, (token, value) in job.fields:
            schema = None if token is None else schemas.get(token)
            if schema is None or index in job.skipped:
                continue
            left -= 1
            if left < 0 or len(value) > _TIMED_BYTES:
                signal.setitimer(signal.ITIMER_PROF, _RECORD_SECONDS)
                left = _TIMED_EACH
            MARK.pack_into(self._mark, 0, index)
            try:
                if isinstance(schema, str):
                    raise InvalidValue(f"names a schema that cannot be used: {schema}")
                schema.check_value(value)
            except InvalidValue as error:
                self._note(job, index, str(error)[:200])
            except Exception as error:  # noqa: BLE001 - whatever a library raises about hostile bytes
                self._note(job, index, f"does not match its schema: {type(error).__name__}")
            if time.perf_counter() >= until:
                is_done = False
                break
        found = {"errors": job.errors, "count": job.error_count, "done": is_done}
        if is_done:
            del self._jobs[number]
        return found

    def _note(self, job: _Job, index: int, text: str) -> None:
        job.error_count += 1
        if job.error_count <= job.most:
            job.errors.append((index, text))


def main() -> None:
    """Answer messages until the broker closes the socket."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    peer = socket.socket(fileno=int(sys.argv[1]))
    worker = Worker(mmap.mmap(int(sys.argv[2]), MARK.size))
    with peer, peer.makefile("rb", 1 << 18) as incoming:
        while len(sizes := incoming.read(SIZES.size)) == SIZES.size:
            told_size, data_size = SIZES.unpack(sizes)
            told, data = incoming.read(told_size), incoming.read(data_size)
            if len(told) + len(data) < told_size + data_size:
                return
            answer, rest = worker.answer(json.loads(told), data)
            signal.setitimer(signal.ITIMER_PROF, 0)
            worker.mark(NOTHING)
            text = json.dumps(answer).encode()
            peer.sendall(SIZES.pack(len(text), len(rest)) + text + rest)


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main()
    except (OSError, MemoryError):
        os._exit(1)
