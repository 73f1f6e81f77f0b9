"""How long a start takes with many committed offsets and transactional ids, and with half of them: it must be linear.

Owns filling both coordinators' topics through the protocol, and waiting until both have read them again.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from benchmarks.raw import connect, frame, pump
from compat_tests.harness.brokers import KBroker
from compat_tests.wire.client import WireClient
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest, ListGroupsRequest
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.messages.transactions import InitProducerIdRequest, ListTransactionsRequest

COMMITS, IDS = 1_000_000, 100_000
PER_COMMIT = 100
WAIT_S = 120
_LOADED = re.compile(r"(\w+) (\d+): (\d+) records, \d+ bytes loaded in ([\d.]+) s")

Line = tuple[str, str, str]


def replay() -> list[Line]:
    """Fill the topics, stop, start, and return how long the start took."""
    lines: list[Line] = []
    for share in (2, 1):
        commits, ids = COMMITS // share, IDS // share
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            broker = KBroker(Path(directory))
            with broker:
                wait_for_coordinators(broker.bootstrap)
                _create(broker.bootstrap)
                _commit(broker.bootstrap, commits)
                _initialise(broker.bootstrap, ids)
            started = time.perf_counter()
            with broker:
                _wait_until_loaded(broker.bootstrap)
                seconds = time.perf_counter() - started
                loads = _LOADED.findall(broker.log_tail(200))
        records = sum(int(count) for _, _, count, _ in loads)
        text = f"{seconds:.2f} s to both coordinators' answers, {records:,} records read"
        name = f"{commits:,} offset commits and {ids:,} transactional ids"
        lines.append((name, text, "< 10 s, linear" if share == 1 else ""))
        print(": ".join(lines[-1][:2]), flush=True)
    return lines


def wait_for_coordinators(address: str) -> None:
    """Trigger the creation of the coordinators' topics, and wait until they have leaders."""
    deadline = time.monotonic() + WAIT_S
    with WireClient(address) as client:
        for kind, key in ((0, "group"), (1, "id")):
            while client.ask(FindCoordinatorRequest(key=key, key_type=kind), 3).error_code:
                if time.monotonic() > deadline:
                    raise SystemExit(f"no coordinator of kind {kind}")
                time.sleep(0.02)


def _create(address: str) -> None:
    with WireClient(address) as client:
        topics = [CreatableTopic("t", PER_COMMIT, 1)]
        answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=30000), 5)
        if answer.topics[0].error_code:
            raise SystemExit(f"the topic was not created: {answer.topics[0].error_code}")


def _commit(address: str, commits: int) -> None:
    """Commit for separate groups, so that every commit is still valid at the next start."""
    partitions = [OffsetCommitRequestPartition(partition_index=i, committed_offset=7) for i in range(PER_COMMIT)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    requests = [
        frame(8, 8, True, encode(OffsetCommitRequest(group_id=f"group-{number}", topics=topics), 8))
        for number in range(commits // PER_COMMIT)
    ]
    sock = connect(address)
    pump(sock, requests, len(requests), 5)
    sock.close()


def _initialise(address: str, ids: int) -> None:
    requests = [
        frame(
            22, 4, True, encode(InitProducerIdRequest(transactional_id=f"id-{number}", transaction_timeout_ms=60000), 4)
        )
        for number in range(ids)
    ]
    sock = connect(address)
    pump(sock, requests, len(requests), 5)
    sock.close()


def _wait_until_loaded(address: str) -> None:
    """Wait for both answers: each lists all partitions' contents, and is an error while one is being read."""
    deadline = time.monotonic() + WAIT_S
    with WireClient(address) as client:
        for request in (ListGroupsRequest(), ListTransactionsRequest()):
            while client.ask(request, 0).error_code:
                if time.monotonic() > deadline:
                    raise SystemExit("the coordinators did not load")
                time.sleep(0.02)
