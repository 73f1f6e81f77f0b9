"""Requests that no client would send, one message at a time, for trials of any broker.

Owns the requests, in versions that all brokers know. Never judges an answer.
"""

from __future__ import annotations

from typing import Final, Self

from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlteredEntity,
    AlteredEntry,
    OpData,
)
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import NewRecord, build_batch

OUT_OF_ORDER: Final = 45
UNKNOWN_MEMBER: Final = 25
_PROTOCOL: Final = [JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\0\0")]


def advertised(bootstrap: str) -> set[int]:
    """Return the keys of the APIs that a broker advertises."""
    with WireClient(bootstrap.split(",", 1)[0]) as client:
        return {each.api_key for each in client.ask(ApiVersionsRequest(), 0).api_keys}


def set_quota(bootstrap: str, bytes_per_second: float) -> None:
    """Limit the rate at which every client may produce."""
    entry = AlteredEntry([AlteredEntity("client-id", None)], [OpData("producer_byte_rate", bytes_per_second, False)])
    with WireClient(bootstrap.split(",", 1)[0]) as client:
        answer = client.ask(AlterClientQuotasRequest([entry], False), 1)
        assert not isinstance(answer, str), answer
        assert answer.entries[0].error_code == 0, f"a quota is refused with {answer.entries[0].error_code}"


class Connection:
    """One connection to the leader of partition 0 of a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        with WireClient(bootstrap.split(",", 1)[0]) as client:
            told = client.ask(MetadataRequest([MetadataRequestTopic(name=topic)], True), 4)
        brokers = {each.node_id: f"{each.host}:{each.port}" for each in told.brokers}
        self._client = WireClient(brokers[told.topics[0].partitions[0].leader_id])
        self.throttled_ms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def producer_id(self) -> int:
        """Return a new producer id, whose epoch is 0."""
        found: int = self._client.ask(InitProducerIdRequest(None, 60_000), 1).producer_id
        return found

    def append(self, producer_id: int, *, sequence: int) -> tuple[int, int]:
        """Append one record; return the error code and the offset."""
        record: NewRecord = (1_700_000_000_000, None, b"v" * 50, ())
        batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        data = TopicProduceData(name=self._topic, partition_data=[PartitionProduceData(0, batch)])
        answer = self._client.ask(ProduceRequest(None, -1, 5_000, [data]), 7)
        self.throttled_ms = max(self.throttled_ms, answer.throttle_time_ms)
        (told,) = answer.responses[0].partition_responses
        return told.error_code, told.base_offset

    def join(self, group: str) -> tuple[int, str]:
        """Become the only member of a group; return the generation and the member id."""
        self._client.ask(FindCoordinatorRequest(key=group), 0)
        asked = JoinGroupRequest(group, 10_000, 10_000, "", None, "consumer", _PROTOCOL)
        answer = self._client.ask(asked, 2)
        return answer.generation_id, answer.member_id

    def heartbeat(self, group: str, member: tuple[int, str]) -> int:
        """Return the error code of a heartbeat."""
        code: int = self._client.ask(HeartbeatRequest(group, *member), 2).error_code
        return code
