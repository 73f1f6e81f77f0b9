"""The feature group.version: at level 0 there are no consumer groups, and clients can see that (KIP-848)."""

from __future__ import annotations

import uuid

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest

DOWNGRADE, UPGRADE = 2, 1


def set_level(client: WireClient, level: int, kind: int) -> None:
    update = FeatureUpdateKey("group.version", level, upgrade_type=kind)
    assert client.ask(UpdateFeaturesRequest(feature_updates=[update]), 1).error_code == 0


def finalized(client: WireClient) -> dict[str, int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return {each.name: each.max_version_level for each in client.ask(request, 4).finalized_features}


def heartbeat(client: WireClient) -> ErrorCode:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=str(uuid.uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=60000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return ErrorCode(client.ask(request, 1).error_code)


def describe(client: WireClient) -> ErrorCode:
    return ErrorCode(client.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups[0].error_code)


def test_the_feature_is_told_of_in_a_form_that_old_clients_can_read() -> None:
    with Broker() as broker, WireClient(broker.bootstrap_servers) as client:
        for version in (3, 4):
            request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            answer = client.ask(request, version)
            assert {each.name: each.max_version_level for each in answer.finalized_features}["group.version"] == 1
            ranges = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
            assert ranges.get("group.version") == ((0, 1) if version == 4 else None), "no level 0 before (KAFKA-17492)"


def test_the_level_decides_whether_there_are_consumer_groups() -> None:
    with Broker() as broker, WireClient(broker.bootstrap_servers) as client:
        assert finalized(client)["group.version"] == 1
        assert heartbeat(client) != ErrorCode.UNSUPPORTED_VERSION
        set_level(client, 0, DOWNGRADE)
        assert "group.version" not in finalized(client)
        assert heartbeat(client) == describe(client) == ErrorCode.UNSUPPORTED_VERSION
        set_level(client, 1, UPGRADE)
        assert heartbeat(client) != ErrorCode.UNSUPPORTED_VERSION
