"""One sequence of exchanges with one broker: it sends requests, records the answers, and returns the decoded ones.

Owns the transcript: exchange name -> plain answer, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from compat_tests.wire.client import WireClient
from compat_tests.wire.plain import Plain
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

WAIT_SECONDS = 30.0


class Wire:
    """A broker under test. `name` is the name of the sequence; the names of topics from `topic()` contain it."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.transcript: dict[str, Any] = {}
        self._plain = Plain()
        self._clients: list[WireClient] = []
        self.main = self.client()

    def client(self, client_id: str | None = "wire") -> WireClient:
        """Open one more connection."""
        client = WireClient(self.address, client_id)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def ask(self, name: str, request: Any, version: int, client: WireClient | None = None) -> Any:
        """Send a request and record the answer; returns the decoded answer."""
        answer = (client or self.main).ask(request, version)
        self.record(name, version, answer)
        if isinstance(answer, str) and client is None:
            self.main = self.client()
        return answer

    def record(self, name: str, version: int | None, answer: Any) -> None:
        """Record an answer under its own name."""
        key = name if version is None else f"{name} v{version}"
        assert key not in self.transcript, f"two exchanges are called {key!r}"
        self.transcript[key] = self._plain.of(answer)

    def finish(self, name: str, client: WireClient, version: int) -> Any:
        """Read and record the answer to the request that `client` started."""
        answer = client.finish()
        self.record(name, version, answer)
        return answer

    def quiet(self, request: Any, version: int) -> Any:
        """Send a request without recording it: preparation."""
        return self.main.ask(request, version)

    def topic(self, suffix: str = "", partitions: int = 1, **configs: str) -> str:
        """Create a topic and wait until its leaders serve it; returns its name."""
        name = f"{self.name}{'-' + suffix if suffix else ''}"
        answer = self.quiet(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=1,
                        configs=[CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()],
                    )
                ],
                timeout_ms=10000,
            ),
            7,
        )
        assert answer.topics[0].error_code == 0, answer
        self.until(lambda: self._led(name, partitions), f"{name} has leaders")
        return name

    def _led(self, name: str, partitions: int) -> bool:
        answer = self.quiet(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
        found = answer.topics[0]
        if found.error_code or sum(p.leader_id >= 0 for p in found.partitions) < partitions:
            return False
        # Kafka's metadata names a leader a moment before the leader serves.
        asked = [ListOffsetsPartition(i, timestamp=-1) for i in range(partitions)]
        served = self.quiet(ListOffsetsRequest(topics=[ListOffsetsTopic(name, asked)]), 5)
        return all(p.error_code == 0 for p in served.topics[0].partitions)

    def topic_id(self, name: str) -> bytes:
        """Return a topic's id."""
        answer = self.quiet(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
        return bytes(answer.topics[0].topic_id)

    def coordinator(self, group: str) -> None:
        """Wait until the group's coordinator answers."""
        self.until(
            lambda: self.quiet(FindCoordinatorRequest(key=group), 2).error_code == ErrorCode.NONE, "a coordinator"
        )
        # Kafka names a coordinator a moment before the coordinator serves the group.
        asked = DescribeGroupsRequest(groups=[group])
        self.until(lambda: self.quiet(asked, 5).groups[0].error_code == ErrorCode.NONE, "the group to be loaded")

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Repeat a request until `happened` is true, with a deadline."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not happened():
            assert time.monotonic() < deadline, f"waited {WAIT_SECONDS:.0f} s for: {what}"
            time.sleep(0.02)
