"""Finds the records at which groups are stuck, from this broker's evidence: members that leave, fetches, deliveries.

Owns the times of the looks (the periodic checks), the collection of the evidence, and the log line. stuck_offsets.py of
the group coordinator decides when the evidence suffices. Never changes an offset.

The group coordinator knows which members leave, whichever broker leads the partition. A fetch names no group. If a
committed offset does not advance, the coordinator therefore asks the partition's brokers for clients that fetch the
same record again. It compares the client ids and hosts of these clients with those of the members. For share groups,
the leaders of the partitions have the evidence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from kbroker.broker.latest_offsets import LatestOffsets
from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState
from kbroker.group_coordinator.consumer.classic_subscriptions import assigned_by_name
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.group_coordinator.groups.store import Departure
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.stuck_offsets import (
    DELIVERED_AGAIN,
    DELIVERIES,
    LEFT,
    LOOKS,
    READ_AGAIN,
    Place,
    Stuck,
    StuckOffsets,
)
from kbroker.long_work import in_slices, turn
from kbroker.partition import Client
from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from kbroker.replicas import Replicas
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.views.hosted_views import HostedViews

log = logging.getLogger(__name__)

LOOK_MS: Final = 2_000
"""The time in ms between two looks, which are the periodic searches for stuck groups."""
ENDS_MS: Final = 5_000
"""The time in ms for which a look waits until the leaders have returned the end offsets of their partitions."""
_TEXTS: Final = {
    LEFT: "{} members in turn have owned the partition and left without a commit",
    READ_AGAIN: "a member has fetched the record again for some time, at least {} times",
    DELIVERED_AGAIN: "it was delivered {} times",
}

_Key = tuple[str, int]
Reread = tuple[str, int, int, str, str, int]
"""A client that repeatedly fetches the same record: the fields of messages.groups.Reread."""
MOST_REREADS: Final = 100
_VERSION: Final = 5
"""The version of DescribeGroups between brokers: the first version with tags."""


class GroupMember(Protocol):
    """A member of a group of any protocol."""

    @property
    def client_id(self) -> str: ...

    @property
    def client_host(self) -> str: ...


class StuckGroups:
    """The search of one broker; call `tick` periodically."""

    def __init__(
        self,
        node_id: int,
        groups: GroupCoordinator,
        replicas: Replicas,
        latest: LatestOffsets,
        share: Callable[[], ShareDelivery],
        state: Callable[[], ClusterState],
        clock: Clock,
        views: HostedViews,
        peers: PeersByNode | None = None,
    ) -> None:
        """`peers` are the other brokers of a cluster."""
        self._views = views
        self._node_id = node_id
        self._peers = peers
        self._groups = groups
        self._replicas = replicas
        self._latest = latest
        self._share = share
        self._state = state
        self._clock = clock
        self._next_ms = clock.monotonic_ms() + LOOK_MS
        self._offsets = StuckOffsets()
        self._before: dict[_Key, dict[Client, int]] = {}
        """By partition: the offset of each client's last fetch before the last look."""
        self._again: dict[tuple[_Key, Client, int], int] = {}
        """The number of consecutive searches that have found the same fetch."""
        self._newest: WeakKeyDictionary[GroupShard, int] = WeakKeyDictionary()
        """The offset of the newest record in each shard (partition of the offsets topic), at the last search."""
        self._looks_to_ask = 0
        """The number of looks after which the other brokers are asked again."""
        self._looking: asyncio.Task[None] | None = None

    def stuck(self) -> dict[str, list[Stuck]]:
        """Return the records at which groups are stuck, by group."""
        return self._offsets.stuck()

    def rereads(self) -> Iterator[Reread]:
        """Yield the clients that fetched the same record from this broker again and again.

        Each of the last looks has found such a fetch.
        """
        often = (each for each in self._again.items() if each[1] >= LOOKS)
        for (key, client, offset), looks in islice(often, MOST_REREADS):
            yield (*key, offset, *client, looks)

    def tick(self) -> None:
        """Start the next check of the groups if the check is due and the previous check has ended."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_ms and (self._looking is None or self._looking.done()):
            self._next_ms = now_ms + LOOK_MS
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        try:
            await in_slices(self.look())
        except Exception:
            log.exception("the search for records that groups do not get past has failed")

    async def look(self) -> None:
        """Collect the evidence since the last look. Log the records for which the evidence suffices now."""
        await self._note_departures()
        await self._note_fetches()
        await self._note_deliveries()
        await self._drop_moved()
        for group, each in self._offsets.untold():
            log.warning(
                "group %s does not get past offset %d of %s-%d: %s",
                group, each.offset, each.topic, each.partition, _TEXTS[each.cause].format(each.times),
            )  # fmt: skip

    # -- owners that leave

    async def _note_departures(self) -> None:
        """Record the partitions whose owners have left the group while a record was unread.

        Ask all leaders at the same time.
        """
        now_ms = self._clock.now_ms()
        left: list[tuple[Place, int]] = []
        for shard in self._groups.loaded():
            departed = shard.groups.departed
            while departed:
                departure = departed.popleft()
                for topic, indexes in self._owned(departure):
                    held = shard.offsets.of_group(departure.group_id)[0].get(topic, {})
                    left += [((departure.group_id, topic, n), held[n][1].offset) for n in indexes if n in held]
                    await turn
        if not left:
            return
        ends = await self._latest.of_all(((topic, index) for (_, topic, index), _ in left), ENDS_MS)
        for place, offset in left:
            code, end = ends[place[1:]]
            if code == ErrorCode.NONE and end > offset:
                self._offsets.left(place, offset, now_ms)
            await turn

    def _owned(self, departure: Departure) -> Iterable[tuple[str, Iterable[int]]]:
        """Return the partitions that the member owned. The leader of a classic group may have sent any bytes."""
        if isinstance(departure.owned, bytes):
            try:
                return assigned_by_name(departure.owned)
            except Malformed:
                return ()
        names = self._state().topic_names
        return [(names[topic_id], held) for topic_id, held in departure.owned.items() if topic_id in names]

    # -- members that read again

    async def _note_fetches(self) -> None:
        before, again = self._before, self._again
        self._before, self._again = {}, {}
        for partition in list(self._replicas):
            fetched = partition.fetched
            if fetched:
                partition.fetched = {}
                self._before[partition.key] = fetched
            await turn
        self._before |= self._views.take_fetched()
        for key, fetched in self._before.items():
            earlier = before.get(key, {})
            for client, offset in fetched.items():
                if earlier.get(client) == offset:
                    self._again[key, client, offset] = again.get((key, client, offset), 0) + 1
            await turn
        found: list[Place] = []
        for topic, index, offset, client_id, host, looks in [*self.rereads(), *await self._rereads_elsewhere()]:
            for group in await self._groups_at((topic, index), (client_id, host), offset):
                place = group, topic, index
                found.append(place)
                self._offsets.read_again(place, offset, looks, self._clock.now_ms())
        self._offsets.keep_only(READ_AGAIN, found)

    async def _rereads_elsewhere(self) -> list[Reread]:
        """Return the evidence of the other brokers; leave out brokers that do not answer.

        No broker is asked while every group with members advances, or has read all records. Brokers without evidence
        are asked again only when they could have new evidence.
        """
        standing = await self._hosts_where_offsets_stand()
        self._looks_to_ask -= 1
        if self._peers is None or not standing or self._looks_to_ask > 0:
            return []
        answers = await asyncio.gather(*(self._ask(self._peers, each) for each in sorted(standing)))
        found = [each for answer in answers for each in answer]
        self._looks_to_ask = 1 if found else LOOKS
        return found

    async def _hosts_where_offsets_stand(self) -> set[int]:
        """Return the other brokers with a partition whose committed offset stands still.

        The partition has further records, and the group has members.
        """
        others = self._state().brokers.keys() - {self._node_id}
        before, self._newest = self._newest, WeakKeyDictionary()
        found: set[int] = set()
        for shard in self._groups.loaded() if others else ():
            newest, self._newest[shard] = before.get(shard, -1), shard.offsets.newest
            for group_id in shard.offsets.groups():
                await turn
                group = shard.groups.get(group_id)
                if group is None or not group.members:
                    continue
                for topic, held in list(shard.offsets.of_group(group_id)[0].items()):
                    for index, (record, value) in list(held.items()):
                        if record <= newest and not self._is_at_the_end(topic, index, value.offset):
                            found.update(others & self._hosts(topic, index))
                        await turn
                if found == others:
                    return found
        return found

    def _is_at_the_end(self, topic: str, index: int, offset: int) -> bool:
        """Whether this broker knows, without a request, that a partition has no record to read at an offset."""
        partition = self._replicas.get((topic, index))
        return partition is not None and partition.log.high_watermark <= offset

    def _hosts(self, topic: str, index: int) -> set[int]:
        """Return the brokers that could have evidence of repeated fetches. For a view there are no such brokers."""
        known = self._state().topics.get(topic)
        partition = None if known is None or known.source is not None else self._state().partition(topic, index)
        return set() if partition is None else set(partition.replicas)

    async def _ask(self, peers: PeersByNode, node_id: int) -> list[Reread]:
        request = DescribeGroupsRequest(wants_rereads=True)
        try:
            answer = await peers.ask(node_id, request, _VERSION, DescribeGroupsResponse, LOOK_MS)
        except PeerUnavailable:
            return []
        return [
            (one.topic, one.partition, one.offset, one.client_id, one.client_host, one.looks)
            for one in answer.rereads[:MOST_REREADS]
        ]

    async def _groups_at(self, key: _Key, client: Client, offset: int) -> list[str]:
        """Return the groups with this committed offset that have the client as a member."""
        found = []
        for shard in self._groups.loaded():
            for group_id in shard.offsets.groups_with(key[0]):
                group = shard.groups.get(group_id)
                if group is None or _committed(shard, group_id, key) != offset:
                    await turn
                    continue
                members: Mapping[str, GroupMember] = group.members
                for member in list(members.values()):
                    if (member.client_id, member.client_host) == client:
                        found.append(group_id)
                        break
                    await turn
                await turn
        return found

    # -- deliveries of share groups

    async def _note_deliveries(self) -> None:
        found: list[Place] = []
        for hosted in self._share().all():
            first = None if hosted.state is None else hosted.state.first_open()
            if first is not None and first[1] >= DELIVERIES:
                place = hosted.key.group, *hosted.partition.key
                found.append(place)
                self._offsets.delivered_again(place, *first, self._clock.now_ms())
            await turn
        self._offsets.keep_only(DELIVERED_AGAIN, found)

    # -- the end

    async def _drop_moved(self) -> None:
        """Drop the evidence about offsets that are no longer the committed offsets."""
        for place, offset, is_delivered_again in self._offsets.places():
            group, topic, partition = place
            if not is_delivered_again:
                shard = self._groups.loaded_shard(group)
                if shard is None or _committed(shard, group, (topic, partition)) != offset:
                    self._offsets.drop(place)
            await turn


def _committed(shard: GroupShard, group: str, key: _Key) -> int | None:
    stored = shard.offsets.of_group(group)[0].get(key[0], {}).get(key[1])
    return None if stored is None else stored[1].offset
