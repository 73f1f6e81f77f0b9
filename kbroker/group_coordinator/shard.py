"""One partition of `__consumer_offsets` as a state machine: groups and their offsets.

Owns the routing of records, timers and requests to the parts that handle them, and loading and unloading. Pure: it does
no I/O and has no coroutines; the runtime (kbroker.coordination) has both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Self

from kbroker.cluster_state import ClusterState
from kbroker.coordination.encoding import read_prefix
from kbroker.coordination.shard import Outcome, Parked
from kbroker.group_coordinator.classic.join_group import Join, JoinGroups
from kbroker.group_coordinator.classic.membership import Membership
from kbroker.group_coordinator.classic.rebalance import Rebalances, answer_join, answer_sync, schedule_session
from kbroker.group_coordinator.classic.sync_group import SyncGroups
from kbroker.group_coordinator.config import GroupConfig, Settings
from kbroker.group_coordinator.consumer.classic_members import ClassicMembers
from kbroker.group_coordinator.consumer.heartbeat import Heartbeats
from kbroker.group_coordinator.consumer.member_removal import MemberRemoval
from kbroker.group_coordinator.consumer.migration import Migration
from kbroker.group_coordinator.consumer.regexes import Regexes
from kbroker.group_coordinator.consumer.sessions import REASONS, Sessions
from kbroker.group_coordinator.consumer.target import Targets
from kbroker.group_coordinator.groups.classic_group import DEAD, ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.share_group import ShareGroup
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.offset_commit import OffsetCommits
from kbroker.group_coordinator.offset_removal import DeletedTopics, Expiration, group_tombstones
from kbroker.group_coordinator.offsets import Offsets
from kbroker.group_coordinator.records import consumer_group as consumer_records
from kbroker.group_coordinator.records import offsets as offset_records
from kbroker.group_coordinator.records import share_group as share_records
from kbroker.group_coordinator.records import streams_group as streams_records
from kbroker.group_coordinator.records.classic_group import GROUP_METADATA, read_group_key, restore
from kbroker.group_coordinator.share.heartbeat import SESSION, ShareHeartbeats
from kbroker.group_coordinator.share.state_partitions import StateOfGroups
from kbroker.group_coordinator.streams.heartbeat import StreamsHeartbeats
from kbroker.group_coordinator.streams.members import REASONS as STREAMS_REASONS
from kbroker.group_coordinator.streams.members import StreamsMembers
from kbroker.group_coordinator.streams.target import StreamsTargets
from kbroker.group_coordinator.streams_settings import StreamsSettings
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    DeletableGroupResult,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)


class GroupShard:
    """The groups of one partition. `seconds` is a stopwatch for the slices of long work."""

    def __init__(
        self,
        config: GroupConfig,
        topics: Topics | None = None,
        settings: Settings | None = None,
        streams: StreamsSettings | None = None,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        topics = topics or Topics(ClusterState(""))
        settings = settings or Settings(config, topics)
        streams = streams or StreamsSettings(config.streams, topics)
        self.groups = groups = Groups()
        self.offsets = Offsets(groups)
        self._deleted_topics = DeletedTopics(self.offsets)
        self.commits = OffsetCommits(groups, self.offsets, topics, config)
        self._expiration = Expiration(groups, self.offsets, config, seconds)
        self._rebalances = rebalances = Rebalances(config)
        self._joins = JoinGroups(groups, config, rebalances)
        self._syncs = SyncGroups(rebalances)
        self._membership = Membership(rebalances, groups)
        self._sessions = sessions = Sessions(groups, settings)
        migration = Migration(groups, config, rebalances, sessions, topics)
        self._regexes = Regexes(groups, topics, settings, seconds)
        targets = Targets(self._regexes, sessions, topics, settings)
        self._removal = removal = MemberRemoval(groups, migration, topics)
        self.heartbeats = Heartbeats(groups, migration, targets, removal, sessions, settings)
        self._classic_members = ClassicMembers(migration, targets, removal, sessions, topics, config.consumer_max_size)
        self._streams_members = StreamsMembers(groups, migration, streams)
        self._streams_targets = StreamsTargets(streams)
        self.streams = StreamsHeartbeats(self._streams_members, self._streams_targets, topics, streams)
        self.share_state = StateOfGroups(groups, topics, settings)
        self.share_heartbeats = ShareHeartbeats(groups, self.share_state, topics, settings)
        self._decided_ms = 0
        self._unknown_types: set[int] = set()

    # -- replay

    steps_over_unreadable = False

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        kind = read_prefix(key, "key")
        if kind in (offset_records.OFFSET_COMMIT, offset_records.LEGACY_OFFSET_COMMIT):
            place = offset_records.read_offset_key(key[2:])
            if value is None:
                self.offsets.remove(place.group, place.topic, place.partition)
                return
            known = offset_records.read_offset_value(kind, value)
            if self.groups.get(place.group) is None:
                self.groups.put(ClassicGroup(place.group, known.commit_timestamp))
            self.offsets.put(offset, producer_id, place.group, place.topic, place.partition, known)
        elif kind == GROUP_METADATA:
            group_id = read_group_key(key[2:]).group
            if value is None:
                self.groups.remove(self.groups.classic(group_id))
            else:
                self.groups.put(restore(group_id, value))
        elif kind in consumer_records.KINDS:
            self.groups.remove(consumer_records.replay(kind, key, value, self._replayed_group))
        elif kind in streams_records.KINDS:
            self.groups.remove(streams_records.replay(kind, key, value, self._replayed_streams_group))
        elif kind in share_records.KINDS:
            self.groups.remove(share_records.replay(kind, key, value, self._replayed_share, self._decided_ms))
        elif kind not in self._unknown_types:
            # The record comes from a later version of Kafka.
            self._unknown_types.add(kind)
            log.warning("records of type %d in the offsets topic are ignored", kind)

    def _replayed_group(self, group_id: str, create: bool) -> ConsumerGroup | None:
        """Return the consumer group of a record.

        If `create`, a missing group is created. It replaces a group of this id that has only offsets.
        """
        group = self.groups.consumer(group_id)
        if group is None and create:
            group = ConsumerGroup(group_id)
            self.groups.put(group)
        return group

    def _replayed_streams_group(self, group_id: str, create: bool) -> StreamsGroup | None:
        """Return the streams group of a record.

        If `create`, a missing group is created. It replaces a group of this id that has only offsets.
        """
        group = self.groups.streams(group_id)
        if group is None and create:
            group = StreamsGroup(group_id)
            self.groups.put(group)
        return group

    def _replayed_share(self, group_id: str, create: bool) -> ShareGroup | None:
        """Return the share group to which a record applies. The share group replaces a group that has only offsets."""
        group = self.groups.share(group_id)
        if group is None and create:
            group = ShareGroup(group_id)
            self.groups.put(group)
        return group

    def at(self, now_ms: int) -> Self:
        """Set the time of a decision about share groups, whose records depend on the time; return the shard."""
        self._decided_ms = now_ms
        return self

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed)

    def on_loaded(self, now_ms: int) -> Outcome:
        """Begin to serve: each member may wait a full session timeout before its next heartbeat."""
        out = Outcome()
        for group in list(self.groups):
            if isinstance(group, ConsumerGroup):
                self._sessions.on_loaded(group, out)
                continue
            if isinstance(group, StreamsGroup):
                self._streams_members.on_loaded(group, out)
                continue
            if isinstance(group, ShareGroup):
                self.share_heartbeats.on_loaded(group, out, now_ms)
                continue
            group.subscribed_topics = group.compute_subscribed_topics()
            for member in group.members.values():
                schedule_session(group, member, out)
            if len(group.members) > self._config.max_size:
                self._rebalances.prepare(group, "the loaded group is larger than group.max.size", out, now_ms)
            elif group.unled:
                self._rebalances.prepare(group, "the loaded group has just become a classic group", out, now_ms)
        self._expiration.begin(out)
        return out

    def on_unloaded(self, now_ms: int) -> Outcome:
        """Stop serving: all waiting members get NOT_COORDINATOR."""
        out = Outcome()
        for group in self.groups:
            if isinstance(group, ClassicGroup):
                group.to(DEAD, now_ms)
                for member in group.members.values():
                    moved = ErrorCode.NOT_COORDINATOR
                    answer_join(member, JoinGroupResponse(member_id=member.member_id, error_code=moved), out)
                    answer_sync(member, SyncGroupResponse(error_code=moved), out)
        return out

    # -- timers

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        """Call the handler of a timer. If the handler raises, the timer fires again (see Timers)."""
        out = Outcome()
        match key:
            case ("session", str(group_id), str(member_id)):
                if (group := self.groups.classic(group_id)) is not None:
                    self._membership.on_session_timer(group, member_id, out, now_ms)
            case ("join" | "sync" as phase, str(group_id)):
                if (group := self.groups.classic(group_id)) is not None:
                    end = self._rebalances.on_join_timer if phase == "join" else self._syncs.on_timer
                    end(group, out, now_ms)
            case ("deleted",):
                return self._deleted_topics.run()
            case ("expire",):
                return self._expiration.run(now_ms)
            case ("regex", str(group_id)):
                return self._regexes.on_timer(group_id, now_ms)
            case ("streams delay", str(group_id)):
                return self._streams_targets.on_timer(group_id, self.groups.streams(group_id), now_ms)
            case (str(kind), str(group_id), str(member_id)) if kind in STREAMS_REASONS:
                streams_group = self.groups.streams(group_id)
                if streams_group is not None:
                    return self._streams_members.on_timer(streams_group, kind, member_id)
            case ("share topics",):
                return self.at(now_ms).share_state.clean_more()
            case (str(kind), str(group_id), str(member_id)) if kind == SESSION:
                return self.at(now_ms).share_heartbeats.on_session_timer(group_id, member_id)
            case (str(kind), str(group_id), str(member_id)) if kind in REASONS:
                consumer_group = self.groups.consumer(group_id)
                if consumer_group is not None:
                    return self._removal.on_timer(consumer_group, kind, member_id, now_ms)
            case _:
                raise ValueError(f"no timer {key!r}")
        return out

    # -- requests of classic members, to groups of either protocol

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, parked: Parked, now_ms: int
    ) -> Outcome:
        join = Join(request, version, client_id, client_host, parked, now_ms)
        group = self.groups.get(request.group_id)
        if group is None or isinstance(group, ClassicGroup):
            return self._joins.join(join)
        if group.is_empty and not isinstance(group, ShareGroup):
            return self._join_empty(group, join)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.join(group, join)
        join.fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
        return join.out

    def _join_empty(self, group: ConsumerGroup | StreamsGroup, join: Join) -> Outcome:
        """Convert a group of another protocol to a classic group for its first classic member.

        The group has no members.
        """
        if join.request.member_id:
            join.fail(ErrorCode.UNKNOWN_MEMBER_ID, join.request.member_id)
            return join.out
        try:
            out = self._joins.join(join)
        except Exception:
            self.groups.put(group)
            raise
        out.records[:0] = group_tombstones(group)
        before = out.after

        def after(code: ErrorCode, now_ms: int) -> Outcome:
            done = Outcome() if before is None else before(code, now_ms)
            if code is not ErrorCode.NONE and self.groups.get(group.group_id) is None:
                self.groups.put(group)
            return done

        out.after = after
        return out

    def sync(self, request: SyncGroupRequest, parked: Parked) -> Outcome:
        group = self.groups.consumer(request.group_id)
        if group is None or group.is_empty:
            return self._syncs.sync(self.groups.classic(request.group_id), request, parked)
        return self._classic_members.sync(group, request, parked)

    def heartbeat(self, request: HeartbeatRequest) -> Outcome:
        group = self.groups.consumer(request.group_id)
        if group is not None:
            return self._classic_members.heartbeat(group, request)
        return self._membership.heartbeat(self.groups.classic(request.group_id), request)

    def leave(self, group_id: str, members: list[MemberIdentity], now_ms: int) -> Outcome:
        group = self.groups.consumer(group_id)
        if group is not None:
            return self._classic_members.leave(group, members, now_ms)
        return self._membership.leave(self.groups.classic(group_id), members, now_ms)

    # -- groups as a whole

    def delete_groups(self, group_ids: Sequence[str]) -> Outcome:
        """Handle a DeleteGroups for groups of this partition: each group is deleted, or gets its own error."""
        out = Outcome()
        results = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                code = ErrorCode.NONE
                out.records += self.offsets.delete_all(group_id)
                out.records += group_tombstones(group)
                self._streams_targets.forget(group_id)
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        out.reply = results
        return out

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> Outcome:
        """Delete the offsets in deleted topics (name to id)."""
        return self._deleted_topics.begin(deleted)
