"""The table of what one loud client does: a row is its name, and the bytes that it sends.

Owns the rows of every API: each list of each request as long as a frame of 30 MB allows (long_requests.py), each text
as large, and handwritten requests whose subject must exist. Batches that are bombs (bombs.py) and crowds of connections
(crowds.py) are separate tables; append another table for this run to `TABLES`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.schema import Scalar
from tests.fair.long_requests import FILLS, NO_LISTS, LongList, every_list, measured

FRAME_BYTES = 30_000_000


@dataclass(frozen=True, slots=True)
class World:
    """What the rows may rely on."""

    topic_id: bytes
    elements: int
    """The most elements that a list gets."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that a client does. `frames` yields the frames that it sends, one after the other."""

    name: str
    frames: Callable[[World], Iterator[bytes]]
    reads: bool = True
    """Whether the client reads its responses."""


def framed(request: Any, version: int) -> bytes:
    """Return a request encoded as a frame."""
    cls = type(request)
    header = RequestHeader(request_api_key=cls.KEY, request_api_version=version, correlation_id=1, client_id="loud")
    body = encode(header, 2 if version in cls.FLEXIBLE else 1) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def _list_row(each: LongList, fill: str) -> Row:
    def frames(world: World) -> Iterator[bytes]:
        one, many = (len(framed(each.filled(n, fill, world.topic_id), each.version)) for n in (1, 1_001))
        count = min(world.elements, FRAME_BYTES * 1_000 // max(many - one, 1_000))
        yield framed(each.filled(count, fill, world.topic_id), each.version)

    return Row(f"{each} {fill}", frames)


def lists(*, of_clusters: bool = False) -> Iterator[Row]:
    """Yield every list of every API."""
    for each in every_list(of_clusters=of_clusters):
        for fill in FILLS:
            yield _list_row(each, fill)


def texts(*, of_clusters: bool = False) -> Iterator[Row]:
    """Yield every top-level text of every API, as large as a frame allows in that version."""
    for api in measured(of_clusters=of_clusters):
        version = api.versions.high
        flexible = version in api.request.FLEXIBLE
        for spec in api.request.SPECS:
            is_text = isinstance(spec.kind, Scalar) and spec.kind.name == "string" and not spec.array
            if not is_text or version not in spec.versions:
                continue
            size = FRAME_BYTES if flexible else 32_000
            yield Row(
                f"{api.name} v{version} {spec.name} of {size} bytes", _text(api.request, spec.name, size, version)
            )


def _text(cls: Any, name: str, size: int, version: int) -> Callable[[World], Iterator[bytes]]:
    def frames(_world: World) -> Iterator[bytes]:
        yield framed(cls(**{name: "x" * size}), version)

    return frames


def by_hand() -> Iterator[Row]:
    """Yield rows that need more than a list: groups that are created, topics that are found by name."""

    def join(world: World) -> Iterator[bytes]:
        protocols = [JoinGroupRequestProtocol(name=f"p{n}") for n in range(min(2 * world.elements, 1_000_000))]
        request = JoinGroupRequest(
            group_id="fair-join",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        yield framed(request, 3)

    def heartbeat(world: World) -> Iterator[bytes]:
        names = [f"t{n}" for n in range(world.elements)]
        request = ConsumerGroupHeartbeatRequest(
            group_id="fair-848", member_id="m", rebalance_timeout_ms=30_000, subscribed_topic_names=names,
            topic_partitions=[],
        )  # fmt: skip
        yield framed(request, 1)

    def dotted(_world: World) -> Iterator[bytes]:
        topics = [CreatableTopic(name=f"a.b.c{n}", num_partitions=1, replication_factor=1) for n in range(10_000)]
        yield framed(CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=True), 7)

    def empty_names(_world: World) -> Iterator[bytes]:
        names = [MetadataRequestTopic(name="")] * (FRAME_BYTES // 2)
        yield framed(MetadataRequest(topics=names, allow_auto_topic_creation=False), 4)

    yield Row("JoinGroup v3 of a million protocols", join)
    yield Row("ConsumerGroupHeartbeat v1 of a new member", heartbeat)
    yield Row("CreateTopics v7 of 10,000 dotted names", dotted)
    yield Row("Metadata v4 of 30 MB of empty names", empty_names)


TABLES: list[Callable[[], Iterator[Row]]] = [lists, texts, by_hand]
"""All rows. Other modules append theirs."""


def every_row(*, of_clusters: bool = False) -> list[Row]:
    """Return the rows of the APIs that a single node serves, or else that only a node of a cluster serves."""
    if of_clusters:
        return [*lists(of_clusters=True), *texts(of_clusters=True)]
    return [row for table in TABLES for row in table()]


def apis_without_rows() -> set[str]:
    """Return the APIs without a row; those with neither a list nor a text need none."""
    every = [True, False]
    named = {row.name.split(" ")[0] for kind in every for row in every_row(of_clusters=kind)}
    return {api.name for kind in every for api in measured(of_clusters=kind)} - named - NO_LISTS
