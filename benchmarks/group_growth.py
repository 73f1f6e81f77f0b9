"""How fast a large group becomes stable after one more member joins: classic and KIP-848, without a client library.

Owns the members (asyncio, one connection each) and the moment at which the assignment is stable and complete. A member
behaves like a client, but sends a heartbeat every `PAUSE_S` seconds, so that the measured time is the broker's.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from compat_tests.wire.client import response_class
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import ApiVersionsRequest, RequestHeader
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

PAUSE_S = 0.05
PROBE_S = 0.002
DEADLINE_S = 120
_SIZE = struct.Struct(">i")

Owned = dict[str, tuple[int, tuple[int, ...]]]
"""For each member: (generation or epoch, partitions)."""


class Peer:
    """One connection that sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def at(cls, address: str) -> Peer:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: Any, version: int) -> Any:
        """Send a request and return the decoded answer."""
        cls: Any = type(request)
        tagged = version in cls.FLEXIBLE
        header = RequestHeader(request_api_key=cls.KEY, request_api_version=version, correlation_id=1, client_id="m")
        body = encode(header, 2 if tagged else 1) + encode(request, version)
        self._writer.write(_SIZE.pack(len(body)) + body)
        size = _SIZE.unpack(await self._reader.readexactly(4))[0]
        view = memoryview(await self._reader.readexactly(size))
        return decode(response_class(request), version, view[5 if tagged and cls is not ApiVersionsRequest else 4 :])

    def close(self) -> None:
        self._writer.close()


class Group:
    """A growing group on one topic, and the partitions of each member."""

    def __init__(self, address: str, name: str, topic: str, topic_id: bytes, partitions: int) -> None:
        self.address, self.name, self.topic, self.topic_id, self.partitions = address, name, topic, topic_id, partitions
        self.owned: Owned = {}
        self._tasks: list[asyncio.Task[None]] = []

    def join(self, member: Callable[[Group, str], Awaitable[None]], number: int) -> None:
        """Start another member."""
        name = f"{self.name}-{number}-{uuid.uuid4()}"

        async def life() -> None:
            await member(self, name)

        self._tasks.append(asyncio.get_running_loop().create_task(life()))

    def is_stable(self, members: int) -> bool:
        """Whether `members` members own every partition, each once, all in one generation."""
        if len(self.owned) != members or len({generation for generation, _ in self.owned.values()}) != 1:
            return False
        shares = [share for _, share in self.owned.values()]
        return sum(map(len, shares)) == self.partitions == len({p for share in shares for p in share})

    async def stable(self, members: int) -> None:
        """Wait until `members` members are stable."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.is_stable(members):
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                shares = sum(len(share) for _, share in self.owned.values())
                raise SystemExit(f"{self.name}: {len(self.owned)} members own {shares} partitions")
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        """End all members without LeaveGroup."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def classic_member(group: Group, name: str) -> None:
    """Join, sync and stay in a classic group; the leader assigns the partitions."""
    peer = await Peer.at(group.address)
    member_id = ""
    subscription = b"\x00\x00" + encode(ConsumerProtocolSubscription(topics=[group.topic]), 0)
    try:
        while True:
            protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription)]
            joined = await peer.ask(
                JoinGroupRequest(
                    group_id=group.name,
                    session_timeout_ms=45000,
                    rebalance_timeout_ms=60000,
                    member_id=member_id,
                    protocol_type="consumer",
                    protocols=protocols,
                ),
                9,
            )
            member_id = joined.member_id or member_id
            if joined.error_code:
                await asyncio.sleep(0 if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED else PAUSE_S)
                continue
            dealt = []
            if joined.leader == member_id:
                names = sorted(each.member_id for each in joined.members)
                dealt = [
                    SyncGroupRequestAssignment(each, struct.pack(">200H", *_share(group, place, len(names))))
                    for place, each in enumerate(names)
                ]
            synced = await peer.ask(
                SyncGroupRequest(
                    group_id=group.name,
                    generation_id=joined.generation_id,
                    member_id=member_id,
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=dealt,
                ),
                5,
            )
            if synced.error_code:
                continue
            group.owned[name] = (joined.generation_id, _dealt(bytes(synced.assignment)))
            await _beat(peer, group, member_id, joined.generation_id)
    finally:
        peer.close()


async def _beat(peer: Peer, group: Group, member_id: str, generation: int) -> None:
    request = HeartbeatRequest(group_id=group.name, generation_id=generation, member_id=member_id)
    await asyncio.sleep(random.uniform(0, PAUSE_S))
    while (await peer.ask(request, 4)).error_code == 0:  # noqa: ASYNC110 - the broker knows of no event here
        await asyncio.sleep(PAUSE_S)


def _share(group: Group, place: int, members: int) -> list[int]:
    """Return a member's partitions as a row of 200 numbers: their count, and then the partitions."""
    share = list(range(place * group.partitions // members, (place + 1) * group.partitions // members))[:199]
    return [len(share), *share, *[0] * (199 - len(share))]


def _dealt(content: bytes) -> tuple[int, ...]:
    count, *partitions = struct.unpack(">200H", content)
    return tuple(partitions[:count])


async def consumer_member(group: Group, name: str) -> None:
    """Join and stay in a KIP-848 group, acknowledging assigned and revoked partitions."""
    peer = await Peer.at(group.address)
    epoch, owned = 0, None
    acknowledged = True
    try:
        while True:
            request = ConsumerGroupHeartbeatRequest(group_id=group.name, member_id=name, member_epoch=epoch)
            if epoch == 0:
                request.rebalance_timeout_ms = 60000
                request.subscribed_topic_names = [group.topic]
                request.topic_partitions = []
            elif not acknowledged:
                request.topic_partitions = [TopicPartitions(group.topic_id, list(owned))] if owned else []
            answer = await peer.ask(request, 1)
            if answer.error_code:
                if answer.error_code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                    epoch, owned = 0, None
                await asyncio.sleep(PAUSE_S)
                continue
            epoch, acknowledged = answer.member_epoch, True
            if answer.assignment is not None:
                owned = tuple(p for topic in answer.assignment.topic_partitions for p in topic.partitions)
                acknowledged = False
            group.owned[name] = (epoch, owned or ())
            if acknowledged:
                await asyncio.sleep(PAUSE_S)
    finally:
        peer.close()


async def probe(address: str) -> float:
    """Return a member's partitions as a row of 200 numbers: the count, and then the partitions."""
    peer = await Peer.at(address)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    longest = 0.0
    await peer.ask(ApiVersionsRequest(), 0)
    print("probing", flush=True)
    while not ended.is_set():
        started = time.perf_counter()
        await peer.ask(ApiVersionsRequest(), 0)
        longest = max(longest, time.perf_counter() - started)
        await asyncio.sleep(PROBE_S)
    peer.close()
    return longest * 1e3


if __name__ == "__main__":
    print(f"{asyncio.run(probe(sys.argv[1])):.2f}")
