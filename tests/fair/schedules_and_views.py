"""What schedule topics, views, filters and stuck groups cost others, at their largest.

Owns these stories, in the form of built_up.py: each has its own broker, and yields the name of its next action, which
is measured until its next yield. Never judges: test_schedules_and_views.py does, in short.

    python -m tests.fair.schedules_and_views [--only TEXT] [--records N] [--views N] [--groups N] [--megabytes N]
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.wire.client import CLOSED, WireClient
from kbroker.protocol.compiler import encode
from kbroker.protocol.compression import ZSTD
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.consumer_groups import AssignedPartitions, ConsumerProtocolAssignment
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.share_fetch import FetchPartition as SharePartition
from kbroker.protocol.messages.share_fetch import FetchTopic as ShareTopic
from kbroker.protocol.messages.share_fetch import ShareFetchRequest
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import Headers, build_batch
from tests.fair.__main__ import broker, told_by
from tests.fair.built_up import PATIENCE_SECONDS, create, measure, now_ms, produce, wait_until

LATER, TARGET, SOURCE = "fair-later", "fair-target", "fair-source"
SHARED = "fair-shared"
CROWD: Final = 50
"""Connections with a waiting Fetch."""
_PRODUCE, _FETCH, _LIST_OFFSETS, _TOPIC, _GROUP, _LATEST = 9, 12, 7, 2, 32, -1
_A_BATCH: Final = 500
_UNLIKE_BATCHES: Final = 100
_SCHEDULED: Final = {"schedule_enable": "true", "message_timestamp_type": "LogAppendTime"}
_LONG_FILTER: Final = 10_000
"""The most bytes of a filter."""
_LONG_VALUE: Final = 32_767
"""The most characters of a config's value."""
_NO_TEXT: Final = 100_000
"""More bytes than a text of Kafka's protocol has: as in Kafka, the connection ends."""
_ZONES: Final = (b"UTC", b"Europe/Berlin", b"America/New_York", b"Australia/Lord_Howe")
_OWNERS: Final = 3
"""How many owners of a partition leave without a commit until a record counts as stuck."""


class Sizes(NamedTuple):
    """How much there is of everything, and the length of what has no end of its own."""

    records: int = 300_000
    views: int = 1_000
    groups: int = 500
    megabytes: int = 30
    """The size of the largest Produce request."""
    seconds: float = 8.0


Story = Callable[[BrokerProcess, Sizes], Iterator[str]]
Row = tuple[bytes | None, bytes | None, Headers]


def _batch(rows: Sequence[Row], codec: int = 0) -> bytes:
    return build_batch([(now_ms(), *row) for row in rows], codec=codec)


def _filled(rows: Iterator[Row], size: int, codec: int = 0) -> tuple[bytes, int]:
    """Return a batch of about so many bytes of records, and how many it has."""
    some = [next(rows) for _ in range(_A_BATCH)]
    each = len(_batch(some)) // len(some)
    some += [next(rows) for _ in range(size // each - len(some))]
    return _batch(some, codec), len(some)


def _sent(client: WireClient, topic: str, batch: bytes) -> int:
    """Produce a batch; return the error code."""
    client.start(produce(topic, 0, batch), _PRODUCE)
    return int(client.finish(PATIENCE_SECONDS).responses[0].partition_responses[0].error_code)


def _end(client: WireClient, topic: str, partitions: int = 1) -> int:
    """Return the number of records of a topic; -1 while it is not known."""
    asked = [ListOffsetsPartition(index, -1, _LATEST) for index in range(partitions)]
    answer = client.ask(
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(topic, asked)]), _LIST_OFFSETS, PATIENCE_SECONDS
    )
    found = answer.topics[0].partitions
    return -1 if any(each.error_code for each in found) else sum(each.offset for each in found)


# -- schedule topics


def schedules(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Produce the largest requests to a schedule topic, of each kind of record."""
    size = sizes.megabytes * 1_000_000
    most = str(2 * size)

    def delays() -> Iterator[Row]:
        for number in range(1 << 40):
            yield None, b"v", (("x-deliver-after", b"%d" % (3_600_000 + number)), ("x-deliver-to", TARGET.encode()))

    def crons() -> Iterator[Row]:
        for number in range(1 << 40):
            zone = _ZONES[number % len(_ZONES)]
            text = b"%d %d %d L %d %d#2" % (number % 60, number // 60 % 60, number // 3600 % 24, number % 12 + 1, 1)
            headers = ("x-schedule", text), ("x-schedule-timezone", zone), ("x-deliver-to", TARGET.encode())
            yield b"%d" % number, b"v", headers

    def cancellations() -> Iterator[Row]:
        for number in range(1 << 40):
            yield b"%d" % number, None, ()

    def wrong() -> Iterator[Row]:
        for number in range(1 << 40):
            yield None, b"v", (("x-schedule", b"%d 61 * * * *" % number), ("x-deliver-to", TARGET.encode()))

    with WireClient(running.bootstrap) as client:
        create(client, TARGET, 3)
        create(client, LATER, max_message_bytes=most, **_SCHEDULED)
        for name, rows in (("delays", delays()), ("cron texts", crons()), ("cancellations", cancellations())):
            yield ""
            batch, count = _filled(rows, size)
            yield f"Produce of {count:,} {name}, {len(batch) / 1e6:.0f} MB"
            assert _sent(client, LATER, batch) == 0
        yield ""
        batch, count = _filled(delays(), size, ZSTD)
        yield f"Produce of {count:,} delays, zstd"
        assert _sent(client, LATER, batch) == 0
        yield ""
        batch, count = _filled(wrong(), size)
        yield f"Produce of {count:,} records that are refused"
        assert _sent(client, LATER, batch) != 0
        yield "the index takes it in"
        wait_until(lambda: _sent(client, LATER, _batch([next(delays())])) == 0, "a further record")
        time.sleep(sizes.seconds)


def burst(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Let very many records be due at once."""
    with WireClient(running.bootstrap) as client:
        create(client, TARGET, 3)
        create(client, LATER, **_SCHEDULED)
        due = now_ms() + 1_000 + sizes.records // 10
        headers = (("x-deliver-at", b"%d" % due), ("x-deliver-to", TARGET.encode()))
        yield f"{sizes.records:,} schedules are written"
        for _ in range(0, sizes.records, _A_BATCH):
            assert _sent(client, LATER, _batch([(None, b"v" * 100, headers)] * _A_BATCH)) == 0
        yield ""
        time.sleep(max(due - now_ms() - 500, 0) / 1000)
        yield f"{sizes.records:,} records are due at once"
        wait_until(lambda: _end(client, TARGET, 3) >= sizes.records, "not all is delivered")


# -- views


def _filter(number: int) -> str:
    return f"header.region = 'R{number}' AND value.amount > {number}"


def _write_source(client: WireClient, records: int) -> None:
    value = b'{"amount": 5, "name": "' + b"x" * 80 + b'"}'
    create(client, SOURCE)
    for start in range(0, records, _A_BATCH):
        rows: list[Row] = [(None, value, (("region", b"%d" % (start + n)),)) for n in range(_A_BATCH)]
        assert _sent(client, SOURCE, _batch(rows)) == 0


def _unlike(number: int) -> str:
    """Return a filter that cannot be looked for together with the others."""
    return " OR ".join(f"header.h{number}x{each} = 'x'" for each in range(20))


def _create_views(client: WireClient, count: int, text: Callable[[int], str] = _filter) -> list[str]:
    names = [f"fair-view-{number}" for number in range(count)]
    for start in range(0, count, 100):
        some = [
            CreatableTopic(
                name, -1, -1,
                configs=[CreatableTopicConfig("view.source", SOURCE), CreatableTopicConfig("view.filter", text(n))],
            )
            for n, name in enumerate(names[start : start + 100], start)
        ]  # fmt: skip
        answer = client.ask(CreateTopicsRequest(topics=some, timeout_ms=60_000), 7, PATIENCE_SECONDS)
        assert not any(each.error_code for each in answer.topics), answer.topics[0]
    return names


def _fetch(names: Sequence[str], offset: int, wait_ms: int, min_bytes: int = 1) -> FetchRequest:
    wanted = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    topics = [FetchTopic(name, partitions=wanted) for name in names]
    return FetchRequest(
        replica_id=-1, max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=1 << 30, session_epoch=-1, topics=topics
    )


def views(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Read views of a long source without a match: one, then very many at once, also while others write."""
    with WireClient(running.bootstrap) as client:
        _write_source(client, sizes.records)
        yield f"{sizes.views:,} views are created"
        names = _create_views(client, sizes.views)
        yield f"Fetch of a view of {sizes.records:,} records without a match"
        client.ask(_fetch(names[:1], 0, 2_000), _FETCH, PATIENCE_SECONDS)
        wait_until(lambda: _end(client, names[0]) >= 0, "the end of a view")
        yield f"ListOffsets of the latest offsets of {sizes.views:,} views"
        asked = [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, _LATEST)]) for name in names]

        def are_known() -> bool:
            client.start(ListOffsetsRequest(replica_id=-1, topics=asked), _LIST_OFFSETS)
            return not any(
                each.error_code for topic in client.finish(PATIENCE_SECONDS).topics for each in topic.partitions
            )

        wait_until(are_known, "the ends of the views")
        yield f"Fetch of {sizes.views:,} views from the beginning"
        client.ask(_fetch(names, 0, 2_000), _FETCH, PATIENCE_SECONDS)
        end = _end(client, SOURCE)
        waiting = [WireClient(running.bootstrap) for _ in range(CROWD)]
        yield f"{CROWD} Fetches of {sizes.views:,} views begin to wait"
        for each in waiting:
            each.start(_fetch(names, end, 600_000), _FETCH)
        time.sleep(sizes.seconds / 2)
        yield "a producer writes what no view shows"
        until = time.monotonic() + sizes.seconds
        while time.monotonic() < until:
            assert _sent(client, SOURCE, _batch([(None, b"{}", (("region", b"none"),))] * 10)) == 0
        yield "a producer writes what each view shows, and all answers are taken"
        rows: list[Row] = [(None, b'{"amount": 100000}', (("region", b"R%d" % n),)) for n in range(sizes.views)]
        assert _sent(client, SOURCE, _batch(rows)) == 0
        for each in waiting:
            assert isinstance(each.receive(PATIENCE_SECONDS), bytes)
            each.close()


def unlike_views(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Write to a source whose views have nothing in common, and which are all waited for."""
    with WireClient(running.bootstrap) as client, WireClient(running.bootstrap) as waiting:
        _write_source(client, _A_BATCH)
        names = _create_views(client, sizes.views, _unlike)
        yield f"Fetch of {sizes.views:,} views without a match, with nothing in common"
        client.ask(_fetch(names, 0, 1_000), _FETCH, PATIENCE_SECONDS)
        end = _end(client, SOURCE)
        waiting.start(_fetch(names, end, 600_000), _FETCH)
        yield "a producer writes what none of them shows"
        row: Row = (None, b"v" * 80, (("region", b"none"),))
        for _ in range(_UNLIKE_BATCHES):  # each view looks at each record for itself
            assert _sent(client, SOURCE, _batch([row] * _A_BATCH)) == 0
        yield "the views read it"
        wait_until(lambda: _end(client, names[-1]) >= 0, "the end of a view")


def filters(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Set, check and describe the longest filters."""
    legal = " OR ".join(f"header.h{n} = 'twelve chars'" for n in range(1 << 12))[:_LONG_FILTER].rpartition(" OR ")[0]
    too_long = "header.x = '" + "x" * (_LONG_VALUE - 13) + "'"

    def altered(names: Sequence[str], text: str, *, validate_only: bool = True) -> int:
        resources = [IncrementalResource(_TOPIC, name, [IncrementalConfig("view.filter", 0, text)]) for name in names]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
        client.start(request, 1)
        return max(each.error_code for each in client.finish(PATIENCE_SECONDS).responses)

    with WireClient(running.bootstrap) as client:
        create(client, SOURCE)
        names = _create_views(client, min(sizes.views, 200))
        yield f"filters of {_LONG_VALUE:,} bytes for {len(names)} views"
        assert altered(names, too_long)
        yield f"filters of {_NO_TEXT:,} bytes for {len(names)} views"
        with WireClient(running.bootstrap) as other:
            resources = [
                IncrementalResource(_TOPIC, each, [IncrementalConfig("view.filter", 0, "x" * _NO_TEXT)])
                for each in names
            ]
            assert other.ask(IncrementalAlterConfigsRequest(resources=resources), 1, PATIENCE_SECONDS) == CLOSED
        yield f"filters of {_LONG_FILTER:,} bytes for {len(names)} views, checked"
        assert altered(names, legal) == 0
        yield f"filters of {_LONG_FILTER:,} bytes for {len(names)} views, set"
        assert altered(names, legal, validate_only=False) == 0
        yield f"CreateTopics of {len(names)} views with such filters, checked"
        configs = [CreatableTopicConfig("view.source", SOURCE), CreatableTopicConfig("view.filter", legal + " OR a")]
        topics = [CreatableTopic(f"{name}-new", -1, -1, configs=configs) for name in names]
        client.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=True), 7, PATIENCE_SECONDS)
        yield f"DescribeConfigs of {len(names)} views with such filters"
        resources = [DescribeConfigsResource(_TOPIC, name, None) for name in names]
        client.start(DescribeConfigsRequest(resources=resources, include_synonyms=True), 4)
        assert not any(each.error_code for each in client.finish(PATIENCE_SECONDS).results)


# -- groups


def shares(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Let a share group with a filter look for a match in vain."""
    with WireClient(running.bootstrap) as client:
        _write_source(client, sizes.records)
        configs = [
            IncrementalConfig("share.filter", 0, _filter(1)),
            IncrementalConfig("share.auto.offset.reset", 0, "earliest"),
        ]
        request = IncrementalAlterConfigsRequest(resources=[IncrementalResource(_GROUP, SHARED, configs)])
        assert not client.ask(request, 1).responses[0].error_code
        wait_until(lambda: not client.ask(FindCoordinatorRequest(key=SHARED, key_type=0), 2).error_code, "coordinator")
        member = "m" * 22

        def beat(epoch: int) -> Any:
            names = [SOURCE] if not epoch else None
            return client.ask(ShareGroupHeartbeatRequest(SHARED, member, epoch, None, names), 1, PATIENCE_SECONDS)

        wait_until(lambda: beat(0).error_code == 0, "the share group")
        described = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=SOURCE)]), 12, PATIENCE_SECONDS)
        topic_id = described.topics[0].topic_id
        epoch = 0
        yield f"ShareFetch of {sizes.records:,} records without a match"
        until = time.monotonic() + 3 * sizes.seconds
        while time.monotonic() < until:
            topics = [ShareTopic(topic_id, [SharePartition(0)])] if not epoch else []
            wanted = ShareFetchRequest(
                SHARED, member, epoch, max_wait_ms=500, min_bytes=1, max_records=500, batch_size=500, topics=topics
            )
            answer = client.ask(wanted, 1, PATIENCE_SECONDS)
            assert not answer.error_code, answer
            epoch += 1


def stuck_groups(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """List and describe very many groups, each of which does not get past a record."""
    assignment = encode(ConsumerProtocolAssignment(assigned_partitions=[AssignedPartitions(SOURCE, [0])]), 0)
    names = [f"fair-stuck-{number}" for number in range(sizes.groups)]

    def own_and_leave(client: WireClient, group: str) -> None:
        join = JoinGroupRequest(
            group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range")],
        )  # fmt: skip
        joined = client.ask(join, 3, PATIENCE_SECONDS)
        assert not joined.error_code, joined
        member = joined.member_id
        mine = [SyncGroupRequestAssignment(member, b"\0\0" + assignment)]
        synced = client.ask(
            SyncGroupRequest(group, joined.generation_id, member, assignments=mine), 2, PATIENCE_SECONDS
        )
        assert not synced.error_code, synced
        offsets = [OffsetCommitRequestTopic(name=SOURCE, partitions=[OffsetCommitRequestPartition(0, 1)])]
        commit = OffsetCommitRequest(group, joined.generation_id, member, topics=offsets)
        assert not client.ask(commit, 7).topics[0].partitions[0].error_code
        assert not client.ask(LeaveGroupRequest(group, member), 2).error_code

    def listed() -> int:
        client.start(ListGroupsRequest(), 5)
        return sum(bool(each.stuck) for each in client.finish(PATIENCE_SECONDS).groups)

    with WireClient(running.bootstrap) as client:
        create(client, SOURCE)
        assert _sent(client, SOURCE, _batch([(None, b"v", ())] * 10)) == 0
        wait_until(lambda: not client.ask(FindCoordinatorRequest(key="g", key_type=0), 2).error_code, "coordinator")
        for number in range(_OWNERS):
            yield f"owner {number + 1} of each of {sizes.groups:,} groups leaves without a commit"
            for name in names:
                with contextlib.suppress(TimeoutError):
                    own_and_leave(client, name)
        yield f"the broker finds {sizes.groups:,} groups that are stuck"
        wait_until(lambda: listed() == sizes.groups, "not all groups are known to be stuck")
        yield f"ListGroups of {sizes.groups:,} groups that are stuck"
        until = time.monotonic() + sizes.seconds / 2
        while time.monotonic() < until:
            assert listed() == sizes.groups
        yield f"DescribeGroups of {sizes.groups:,} groups that are stuck"
        until = time.monotonic() + sizes.seconds / 2
        while time.monotonic() < until:
            client.start(DescribeGroupsRequest(groups=names), 5)
            assert len(client.finish(PATIENCE_SECONDS).groups) == sizes.groups


STORIES: dict[str, Story] = {
    "schedules": schedules,
    "burst": burst,
    "views": views,
    "unlike": unlike_views,
    "filters": filters,
    "share.filter": shares,
    "stuck groups": stuck_groups,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fair.schedules_and_views", description=__doc__)
    parser.add_argument("--only", default="", help=f"stories whose name has this text: {', '.join(STORIES)}")
    for name, default in Sizes._field_defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    sizes = Sizes(*(getattr(options, name) for name in Sizes._fields))
    print(f"{'story':58} {'longest wait':>12} {'middle':>8} {'memory':>8} {'took':>9}")
    for name, story in STORIES.items():
        if options.only in name:
            with broker(False) as running:
                for measured in measure(running, story, sizes):
                    print(measured, flush=True)
                    for line in told_by(running):
                        print(f"{'':4}{line}", flush=True)


if __name__ == "__main__":
    main()
