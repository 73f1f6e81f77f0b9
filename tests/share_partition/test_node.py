"""Share partitions of a node: restarts, rights, the versions in ApiVersions, long requests, a stop during work."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.handlers import share_acknowledgements, share_fetch
from kbroker.handlers.registry import RequestContext
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.share_acknowledge import AcknowledgementBatch, ShareAcknowledgeRequest
from kbroker.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from kbroker.share_partition.states import RecordState

from .conversation import GROUP, Member, Served, acquired
from .memory import MemoryPersister

T = ("t", 0)


def test_a_restart_keeps_what_is_stored(tmp_path: Path) -> None:
    persister = MemoryPersister()
    with Broker(data_dir=tmp_path) as broker:
        served = Served(broker, persister)
        topic = served.topic("t")
        served.produce("t", 6)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 5, 1)]
            assert member.acknowledge({T: [(0, 1, [1]), (2, 2, [2]), (4, 4, [3])]}).error_code == 0
            assert served.in_flight("t") == 4
    with Broker(data_dir=tmp_path) as broker:
        served = Served(broker, persister)
        served.topics["t"] = topic
        with Member(served, "m2") as member:
            got = acquired(member.fetch(T, wait_ms=5000))
            assert [at for first, last, _ in got for at in range(first, last + 1)] == [2, 3, 5]
            assert got[0][2] == 2, "deliveries are counted over restarts"


def test_a_stop_waits_for_no_store() -> None:
    with Broker() as broker:
        served = Served(broker)
        served.topic("t")
        served.produce("t", 2)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
            served.persister.held = served.on_loop(asyncio.Event)
            member.client.start(member.fetching(acks={T: [(0, 1, [1])]}, wait_ms=60_000), 2)
            served.until(lambda: served.persister.at_once == 1)
            broker.stop()


def test_a_stop_waits_for_no_member_without_a_session() -> None:
    with Broker() as broker:
        served = Served(broker)
        served.topic("t")
        served.share.sessions.limit = 1
        with Member(served) as member, Member(served, "m2") as late:
            member.fetch(T)
            late.client.start(late.fetching(T, wait_ms=2**31 - 1), 2)
            served.until(lambda: served.share._pauses)
            begin = time.monotonic()
            broker.stop()
            assert time.monotonic() - begin < 1.5
            assert late.finish().error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert not served.share._pauses


def test_the_apis_are_told_of_while_share_groups_are_enabled() -> None:
    with Broker() as broker, WireClient(broker.bootstrap_servers) as client:
        off = FeatureUpdateKey("share.version", 0, upgrade_type=2)
        assert client.ask(UpdateFeaturesRequest(feature_updates=[off]), 1).error_code == 0
        assert not {78, 79} & {each.api_key for each in client.ask(ApiVersionsRequest(), 2).api_keys}
        Served(broker)
        told = {each.api_key: each for each in client.ask(ApiVersionsRequest(), 2).api_keys}
        assert (told[78].min_version, told[78].max_version, told[79].max_version) == (1, 2, 2)


def test_topics_that_the_client_may_not_read() -> None:
    with Broker() as broker:
        served = Served(broker)
        topic = served.topic("t")
        served.produce("t", 2)
        ctx: Any = SimpleNamespace(services=broker.node.services, version=2, metering=None)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
            session = served.share.sessions.get(GROUP, "m1")
            fetch = ShareFetchRequest(group_id=GROUP, member_id="m1", max_records=5, max_bytes=1000, topics=[])
            refused = served.on_loop(
                lambda: share_fetch._fetch(ctx, served.share, fetch, session, lambda _topic: False)
            )
            assert [each.error_code for each in refused.values()] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            asked = ShareAcknowledgeRequest(group_id=GROUP, member_id="m1", topics=member.acks_of({T: [(0, 1, [1])]}))
            acks = served.on_loop(
                lambda: share_acknowledgements.acknowledge(ctx, served.share, asked, lambda _topic: False)
            )
            assert acks == {(topic, 0): (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)}
            assert served.in_flight("t") == 2


def count_turns(work: Any) -> tuple[Any, int]:
    count = 0
    while True:
        try:
            waits = work.send(None)
        except StopIteration as end:
            return end.value, count
        assert waits is None, "nothing to wait for"
        count += 1


def test_twenty_thousand_batches_go_in_pieces() -> None:
    with Broker() as broker:
        served = Served(broker)
        served.topic("t")
        served.produce("t", 10)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 9, 1)]
            batches = [AcknowledgementBatch(0, 0, [4])] * 20_000
            request = ShareAcknowledgeRequest(
                group_id=GROUP, member_id="m1", is_renew_ack=True, topics=member.acks_of({T: [(0, 0, [4])]})
            )
            request.topics[0].partitions[0].acknowledgement_batches = batches
            ctx: Any = SimpleNamespace(services=broker.node.services, version=2, metering=None)

            async def there() -> tuple[Any, int]:
                return count_turns(share_acknowledgements.acknowledge(ctx, served.share, request, lambda _topic: True))

            results, turns = served.on_loop(there)
            assert [each.code for each in results.values()] == [0]
            assert turns > 40_000


def test_a_session_of_many_partitions_goes_in_pieces() -> None:
    with Broker() as broker:
        served = Served(broker)

        async def there() -> int:
            ctx = RequestContext(broker.node.services, "/192.0.2.1", "PLAINTEXT", ("", 0))
            ctx.version = 2
            topics = [FetchTopic(number.to_bytes(16, "big"), [FetchPartition(0, [])]) for number in range(1, 5_001)]
            request = ShareFetchRequest(
                group_id=GROUP, member_id="m1", max_records=1, max_bytes=1, share_session_epoch=0, topics=topics
            )
            answer, turns = count_turns(share_fetch.share_fetch(ctx, request))
            assert len(answer.responses) == 5_000
            return turns

        assert served.on_loop(there) > 15_000


def test_ten_thousand_locks_end_together() -> None:
    with Broker() as broker:
        served = Served(broker)
        served.settings.now = served.settings.now._replace(record_locks=10_000)
        served.topic("t")
        served.produce("t", *[500] * 20)
        with Member(served) as member, Member(served, "m2") as other:
            assert len(acquired(member.fetch(T, wait_ms=5000, records=10_000, max_bytes=1 << 24))) == 20
            assert member.acknowledge({T: [(0, 9999, [1, 4] * 5000)]}, renew=True).error_code == 0
            other.start(T, wait_ms=20_000, records=10_000, max_bytes=1 << 24)
            broker.clock.advance(seconds=31)
            assert acquired(other.finish())[0] == (1, 1, 2)
            hosted = served.share.get(GROUP, served.topics["t"], 0)
            served.until(lambda: hosted.is_idle)
            state = hosted.state
            assert state.start == 1
            assert {what & 7 for what in state.runs.what} <= {RecordState.ACQUIRED, RecordState.ACKNOWLEDGED, 0}
