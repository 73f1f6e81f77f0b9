"""Load on a broker's schema registry: requests by id, registrations, the replay of its topic, and memory.

    python -m benchmarks.registry [--schemas N] [--seconds S]

One broker on one core, its clients on the others. The output is: the wait of a client that registers one schema after
the other; the rate of requests by id, alone and beside a producer; how long a quiet client of the broker waits beside
the same producer, with and without requests by id; the time from a start of the broker to the answer for the newest
schema; and how much more memory its process uses with all schemas than without any. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import select
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ratios import save
from benchmarks.raw import connect, percentile, produce_frame, pump
from benchmarks.schema_checks import WithRegistry
from benchmarks.subjects import memory_mb
from tests.fair.__main__ import Quiet

CORES = sorted(os.sched_getaffinity(0))
CONNECTIONS = 4
A_SECOND = 3_000
"""Requests by id per second, beside a producer."""
BATCHES_A_SECOND = 300


class Http:
    """A connection that is kept open, without a library whose time would count."""

    def __init__(self, address: str) -> None:
        self._sock = connect(address)
        self._host = address

    def get(self, path: str) -> bytes:
        return self._ask(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    def post(self, path: str, value: object) -> bytes:
        body = json.dumps(value).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return self._ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _ask(self, request: bytes) -> bytes:
        self._sock.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{request[:80]!r}: {head!r}")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += self._more()
        return body

    def _more(self) -> bytes:
        if not (got := self._sock.recv(65536)):
            raise ConnectionError("the registry closed the connection")
        return got

    def close(self) -> None:
        self._sock.close()


def schema(number: int) -> dict[str, str]:
    fields = [{"name": f"field_{each}", "type": "string"} for each in range(10)]
    return {"schema": json.dumps({"type": "record", "name": f"Order{number}", "fields": fields})}


def register(address: str, first: int, last: int) -> list[float]:
    """Register one schema after the other; return the waits in seconds."""
    client, waits = Http(address), []
    for number in range(first, last):
        began = time.perf_counter()
        client.post(f"/subjects/topic-{number}-value/versions", schema(number))
        waits.append(time.perf_counter() - began)
    client.close()
    return waits


def _answer(sock: socket.socket) -> None:
    """Read one response, whose head and body may arrive separately; raises RuntimeError unless it is a schema."""
    answer = sock.recv(65536)
    while (end := answer.find(b"\r\n\r\n")) < 0 or len(answer) == end + 4:
        answer += sock.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"}"):  # a schema is shorter than a segment
        raise RuntimeError("a schema was not returned")


def ask(address: str, largest: int, seconds: float, a_second: int, told: multiprocessing.Queue[list[float]]) -> None:
    """Request schemas by id over all connections, at most `a_second` (0: no limit); put the waits in the queue.

    One process with a low priority serves all connections, so that it takes little of the cores on which other clients
    wait.
    """
    os.nice(10)
    requests = [f"GET /schemas/ids/{each + 1} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for each in range(largest)]
    waits: list[float] = []
    sent: dict[int, float] = {}
    clock, number = time.perf_counter, 0
    socks = {each.fileno(): each for each in (connect(address) for _ in range(CONNECTIONS))}
    ready = select.epoll()
    for each in socks:
        ready.register(each, select.EPOLLIN)
    free = list(socks)
    begin = clock()
    while (now := clock()) < begin + seconds:
        while free and (not a_second or len(waits) + len(sent) < (now - begin) * a_second):
            number = (number * 31 + 7) % largest
            at = free.pop()
            sent[at] = clock()
            socks[at].send(requests[number])
        for at, _ in ready.poll(1 / a_second if a_second and free else 1):
            _answer(socks[at])
            waits.append(clock() - sent.pop(at))
            free.append(at)
    for sock in socks.values():
        sock.close()
    told.put(waits)


def asked(address: str, largest: int, seconds: float, a_second: int) -> tuple[float, list[float]]:
    """Request schemas by id from another process; return the rate per second, and the waits."""
    told: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    client = multiprocessing.Process(target=ask, args=(address, largest, seconds, a_second, told))
    client.start()
    waits = told.get(timeout=seconds + 60)
    client.join()
    return len(waits) / seconds, waits


def _create(address: str) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic("load", 1, 1)])
    admin.close()


def _produce(address: str, until: Callable[[], bool]) -> None:
    request = produce_frame("load", 0, 100, 100)
    with connect(address) as sock:
        while not until():
            began = time.perf_counter()
            pump(sock, [request], 1, 1)
            time.sleep(max(0.0, began + 1 / BATCHES_A_SECOND - time.perf_counter()))


@contextmanager
def producer(address: str) -> Iterator[None]:
    """Let a producer send batches at a fixed rate."""
    ended = threading.Event()
    running = threading.Thread(target=_produce, args=(address, ended.is_set))
    running.start()
    try:
        yield
    finally:
        ended.set()
        running.join()


def beside(broker: WithRegistry, largest: int, seconds: float) -> list[tuple[str, str]]:
    quiet = Quiet(broker.bootstrap)
    waits: dict[bool, list[float]] = {True: [], False: []}
    rates, by_id = [], []
    try:
        with producer(broker.bootstrap):
            for loud in (False, True) * 3:
                quiet.begin()
                if loud:
                    rate, found = asked(broker.registry, largest, seconds, A_SECOND)
                    rates.append(rate)
                    by_id.append(percentile(found, 0.99))
                else:
                    time.sleep(seconds)
                waits[loud].append(quiet.end()["p99"])
    finally:
        quiet.close()
    alone, loud_p99 = (statistics.median(waits[loud]) * 1e3 for loud in (False, True))
    return [
        ("by id beside a producer, requests/s", f"{statistics.median(rates):,.0f} of {A_SECOND:,} sent"),
        ("by id beside a producer, p99 ms", f"{statistics.median(by_id) * 1e3:.2f}"),
        ("quiet client beside the producer, p99 ms", f"{alone:.2f}"),
        ("quiet client beside both, p99 ms", f"{loud_p99:.2f}"),
    ]


def start(broker: WithRegistry) -> None:
    """Start the broker on one core; this process, and processes that it starts later, stay on the others."""
    os.sched_setaffinity(0, CORES[-1:])
    broker.start()
    os.sched_setaffinity(0, CORES[:-1] or CORES)


def answered(address: str, number: int) -> float:
    """Return when the registry answers for a schema: its listener accepts connections before the replay has ended."""
    while True:
        try:
            client = Http(address)
            client.get(f"/schemas/ids/{number}")
            client.close()
            return time.perf_counter()
        except (ConnectionError, RuntimeError):
            time.sleep(0.002)


def measure(schemas: int, seconds: float) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        broker = WithRegistry(Path(directory), {})
        start(broker)
        try:
            _create(broker.bootstrap)
            register(broker.registry, 0, 1)
            empty = memory_mb(broker.pid)
            waits = register(broker.registry, 1, schemas)
            found += [
                (f"registering, p{share} ms", f"{percentile(waits, share / 100) * 1e3:.2f}") for share in (50, 99)
            ]
            found.append((f"memory for {schemas:,} schemas as registered, MB", f"{memory_mb(broker.pid) - empty:.1f}"))
            rate, by_id = asked(broker.registry, schemas, seconds, 0)
            found += [("by id alone, requests/s", f"{rate:,.0f}"), ("by id alone, p99 ms", _p99(by_id))]
            found += beside(broker, schemas, seconds)
            broker.stop()
            start(broker)
            began = time.perf_counter()
            took = answered(broker.registry, schemas) - began
            found.append((f"{schemas:,} schemas, from ready to the newest, s", f"{took:.2f}"))
            found.append((f"memory for {schemas:,} schemas as replayed, MB", f"{memory_mb(broker.pid) - empty:.1f}"))
        finally:
            broker.stop()
    return found


def _p99(waits: list[float]) -> str:
    return f"{percentile(waits, 0.99) * 1e3:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.registry", description=__doc__)
    parser.add_argument("--schemas", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    rows = measure(args.schemas, args.seconds)
    lines = ["| what | found |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    save("registry", "The schema registry", f"registry --schemas {args.schemas} --seconds {args.seconds:g}", lines)


if __name__ == "__main__":
    main()
