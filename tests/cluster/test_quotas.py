"""Quotas in a cluster: set through any broker, applied by all; replication between brokers is not limited."""

from __future__ import annotations

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Cluster
from kbroker.protocol.messages.clients import AlterClientQuotasRequest, DescribeClientQuotasRequest
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.broker.test_client_quotas import entry
from tests.cluster.test_acls import until


def ask(address, request, version, client_id="app"):
    with WireClient(address, client_id) as client:
        return client.ask(request, version)


def throttled(address):
    return ask(address, ApiVersionsRequest(), 3).throttle_time_ms


def described(address):
    return len(ask(address, DescribeClientQuotasRequest(), 1, "other").entries)


def test_quotas_are_every_brokers():
    with Cluster(brokers=3) as cluster:
        first, second, third = (each.bootstrap_servers for each in cluster.brokers.values())
        nested = entry({"user": "ANONYMOUS", "client-id": "app"}, request_percentage=1e-9)
        rate = entry({"user": None}, consumer_byte_rate=1.0)
        answer = ask(second, AlterClientQuotasRequest(entries=[nested, rate]), 1)
        assert [each.error_code for each in answer.entries] == [0, 0]
        for address in (first, second, third):
            until(lambda address=address: throttled(address) == 1000)
            until(lambda address=address: described(address) == 2)

        # Followers are ANONYMOUS, too; their fetches do not count.
        topic = CreatableTopic(name="copied", num_partitions=1, replication_factor=3)
        ask(first, CreateTopicsRequest([topic], timeout_ms=20_000), 7, "other")
        (found,) = [t for t in ask(first, MetadataRequest(topics=None), 12, "other").topics if t.name == "copied"]
        leader = cluster.brokers[found.partitions[0].leader_id].bootstrap_servers
        with WireClient(leader, "other") as client:

            def produced():
                answer = client.ask(produce_request("copied", batch(1, size=50_000), acks=-1), 9)
                assert answer.throttle_time_ms == 0
                return answer.responses[0].partition_responses[0].error_code

            until(lambda: produced() == 0)  # the leader may not know the topic yet
            assert [produced(), produced()] == [0, 0]

        gone = entry({"user": "ANONYMOUS", "client-id": "app"}, request_percentage=None)
        ask(third, AlterClientQuotasRequest(entries=[gone]), 1, "other")
        for address in (first, second, third):
            until(lambda address=address: throttled(address) == 0)
