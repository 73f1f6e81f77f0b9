"""An S3 on this machine, and a proxy before it that damages answers on request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from moto.server import ThreadedMotoServer

from kbroker.remote.store import Store, open_store

BUCKET = "tiers"
KEY_ID, SECRET = "KEYIDKEYIDKEYID", "SECRETSECRETSECRET"


@dataclass
class S3:
    """moto's server in threads of this process."""

    port: int

    def open_uploads(self) -> int:
        """Return the number of multipart uploads that are neither complete nor dropped."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{BUCKET}?uploads", timeout=30) as answer:
            return answer.read().count(b"<Upload>")


@contextmanager
def s3() -> Iterator[S3]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield S3(port)
    finally:
        server.stop()


@dataclass(frozen=True)
class Request:
    line: str
    head: bytes
    body: bytes

    @property
    def verb(self) -> str:
        return self.line.partition(" ")[0]


Answer = tuple[bytes, bytes]
"""Its head, up to and with the empty line, and its body."""


@dataclass
class Proxy:
    """Passes requests on one by one. `fault` says what becomes of those that match; `times` bounds their number."""

    s3_port: int
    port: int = 0
    fault: str = ""
    matches: Callable[[Request], bool] = lambda request: True
    times: int = 1 << 30
    seen: list[str] = field(default_factory=list)
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    stores: list[Store] = field(default_factory=list)
    never: set[asyncio.Task[None]] = field(default_factory=set)
    """The connections that wait in vain for an answer."""

    def arm(self, fault: str, matches: Callable[[Request], bool] = lambda request: True, times: int = 1 << 30) -> None:
        self.fault, self.matches, self.times = fault, matches, times
        self.seen.clear()

    def saw(self, verb: str, text: str) -> bool:
        return any(line.startswith(verb) and text in line for line in self.seen)

    def store(self, deadline_s: float = 20) -> Store:
        settings = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }
        self.stores.append(open_store(f"s3://{BUCKET}/prefix", settings, deadline_s=deadline_s))
        return self.stores[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    request = await read_request(reader)
                    self.seen.append(request.line)
                    if not await self.answer(self.fault_for(request), request, reader, writer):
                        return
        finally:
            self.connections.discard(task)
            writer.close()

    def fault_for(self, request: Request) -> str:
        """Return the fault for a request; empty for none."""
        if not (self.fault and self.times > 0 and self.matches(request)):
            return ""
        self.times -= 1
        return self.fault

    async def answer(
        self, fault: str, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; return whether the connection goes on."""
        if fault.isdigit():
            writer.write(refusal(fault, request))
        elif fault == "never":
            task = asyncio.current_task()
            assert task is not None
            self.never.add(task)
            try:
                await reader.read()
            finally:
                self.never.discard(task)
            return False
        elif fault == "reset":
            return False
        else:
            head, body = await self.passed_on(request)
            if fault == "lost answer":
                return False
            if fault == "half":
                writer.write(head + body[: len(body) // 2])
                await writer.drain()
                return False
            if fault == "slow":
                for at in range(len(head)):
                    writer.write(head[at : at + 1])
                    await writer.drain()
                    await asyncio.sleep(0.05)
            if fault == "short":
                head, body = with_length(head, len(body) - 3), body[:-3]
            if fault == "head lies":
                head = with_length(head, 12345)
            writer.write(head + body)
        await writer.drain()
        return True

    async def passed_on(self, request: Request) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.s3_port)
        try:
            closing = re.sub(rb"(?i)connection: [^\r]*\r\n", b"", request.head)
            writer.write(closing.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + request.body)
            answer = await reader.read()
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head) + b"\r\n\r\n", body


def refusal(status: str, request: Request) -> bytes:
    code = {"403": "SignatureDoesNotMatch", "404": "NoSuchKey", "503": "SlowDown"}.get(status, "InternalError")
    body = f"<Error><Code>{code}</Code><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId><S>{SECRET}</S></Error>".encode()
    sent = b"" if request.verb == "HEAD" else body
    return f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n".encode() + sent


def with_length(head: bytes, length: int) -> bytes:
    return re.sub(rb"(?i)content-length: \d+", b"Content-Length: %d" % length, head)


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    body = await reader.readexactly(int(found[1])) if found else b""
    return Request(head.partition(b"\r\n")[0].decode(), head, body)


@asynccontextmanager
async def proxy(behind: S3) -> AsyncIterator[Proxy]:
    made = Proxy(behind.port)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 20)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(made.connections):
            task.cancel()
        await asyncio.gather(*made.connections, return_exceptions=True)
