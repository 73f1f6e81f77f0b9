"""One partition of `__consumer_offsets` as a state machine: groups and their offsets.

Owns the routing of records and timers to the parts that know them, and what concerns groups as a whole: describing,
listing, deleting, expiring. Pure: no I/O, nothing asynchronous; the runtime (kbroker.coordination) does the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from kbroker.cluster_state import ClusterState
from kbroker.coordination.outcome import CoordinatorRecord, Outcome, Parked, Schedule
from kbroker.group_coordinator import records
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer import describe as consumer_describe
from kbroker.group_coordinator.consumer import records as consumer_records
from kbroker.group_coordinator.consumer.classic_members import ClassicMembers
from kbroker.group_coordinator.consumer.group import ConsumerGroup
from kbroker.group_coordinator.consumer.heartbeat import TIMER_KINDS, Heartbeats
from kbroker.group_coordinator.consumer.migration import Migration
from kbroker.group_coordinator.consumer.regexes import Regexes
from kbroker.group_coordinator.consumer.settings import Settings
from kbroker.group_coordinator.consumer.topics import Topics
from kbroker.group_coordinator.group import DEAD, STABLE, ClassicGroup, Member
from kbroker.group_coordinator.membership import Join, Membership
from kbroker.group_coordinator.offsets import Offsets
from kbroker.group_coordinator.rebalance import Rebalances, answer_join, answer_sync, schedule_session
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import consumer_group_describe
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.delete_groups import DeletableGroupResult
from kbroker.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from kbroker.protocol.messages.group_records import GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kbroker.protocol.messages.leave_group import MemberIdentity
from kbroker.protocol.messages.list_groups import ListedGroup
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_delete import OffsetDeleteRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from kbroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

log = logging.getLogger(__name__)

CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
ERROR_MESSAGE_SINCE = 6
_EXPIRE = ("expire",)
EXPIRE_SLICE_SECONDS = 0.002
_FAILED_TIMER_MS = 10_000
"""When a timer is tried again whose handler failed, which is a bug: not so often that the log says nothing else."""


class GroupShard:
    """The groups of one partition: classic ones in `groups`, those of KIP-848 in `consumer_groups`.

    `seconds` is a stopwatch, by which long work is cut into slices.
    """

    def __init__(
        self,
        config: GroupConfig,
        topics: Topics | None = None,
        settings: Settings | None = None,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._topics = topics = topics or Topics(ClusterState(""))
        settings = settings or Settings(config, topics)
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets = Offsets(self.groups, self.consumer_groups, topics.id_of, config)
        self._rebalances = Rebalances(config)
        self._membership = Membership(self.groups, config, self._rebalances)
        migration = Migration(self.groups, self.consumer_groups, config, self._rebalances, topics)
        self._regexes = Regexes(self.consumer_groups.get, topics, settings, seconds)
        self._heartbeats = Heartbeats(
            migration.find, migration.open_group, migration.downgrade, self._regexes, topics, settings
        )
        migration.heartbeats = self._heartbeats
        self._classic_members = ClassicMembers(self._heartbeats, migration, topics, settings)
        self._unknown_types: set[int] = set()
        self._seconds = seconds
        self._unexpired: list[str] = []  # groups that a look for expired offsets has yet to come to

    # -- replay

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log."""
        kind = key[0] << 8 | key[1] if len(key) > 1 else -1
        if kind == records.OFFSET_COMMIT:
            parsed = records.read_offset_key(key[2:])
            if value is None:
                self.offsets.remove(parsed.group, parsed.topic, parsed.partition)
            else:
                read = records.offset_value_reader(value[0] << 8 | value[1])
                self._put_offset(offset, producer_id, parsed, read(value[2:]))
        elif kind == records.GROUP_METADATA:
            group_id = records.read_group_key(key[2:]).group
            if value is None:
                self.groups.pop(group_id, None)
            else:
                read_group = records.group_value_reader(value[0] << 8 | value[1])
                self.consumer_groups.pop(group_id, None)
                self.groups[group_id] = restore(group_id, read_group(value[2:]))
        elif kind in consumer_records.KINDS:
            gone = consumer_records.replay(kind, key, value, self._replayed_group)
            if gone is not None:
                del self.consumer_groups[gone]
        elif kind == records.LEGACY_OFFSET_COMMIT:
            parsed = records.read_offset_key(key[2:])
            if value is None:
                self.offsets.remove(parsed.group, parsed.topic, parsed.partition)
            else:
                legacy = records.read_legacy_offset_value(value[2:])
                known = OffsetCommitValue(
                    offset=legacy.offset, metadata=legacy.metadata, commit_timestamp=legacy.commit_timestamp
                )
                self._put_offset(offset, producer_id, parsed, known)
        elif kind not in self._unknown_types:
            # Groups of other protocols (share, streams), which are not served here.
            self._unknown_types.add(kind)
            log.warning("records of type %d in the offsets topic are ignored", kind)

    def _put_offset(self, offset: int, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        group_id = key.group
        if group_id not in self.groups and group_id not in self.consumer_groups:
            self.groups[group_id] = ClassicGroup(group_id, value.commit_timestamp)
        self.offsets.put(offset, producer_id, group_id, key.topic, key.partition, value)

    def _replayed_group(self, group_id: str, create: bool) -> ConsumerGroup | None:
        """Return the consumer group that a record is about. A group that only holds offsets gives way to it."""
        group = self.consumer_groups.get(group_id)
        if group is None and create:
            group = self.consumer_groups[group_id] = ConsumerGroup(group_id)
            self.groups.pop(group_id, None)
        return group

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker of the log."""
        self.offsets.end_transaction(producer_id, committed)

    def on_loaded(self, now_ms: int) -> Outcome:
        """Begin to serve: members have a whole session to show up in."""
        out = Outcome()
        for group in list(self.groups.values()):
            group.subscribed_topics = group.compute_subscribed_topics()
            for member in group.members.values():
                schedule_session(group, member, out)
            if len(group.members) > self._config.max_size:
                self._rebalances.prepare(group, "the loaded group is larger than group.max.size", out, now_ms)
            elif group.unled:
                self._rebalances.prepare(group, "the loaded group has just become a classic group", out, now_ms)
        for consumer_group in self.consumer_groups.values():
            self._heartbeats.on_loaded(consumer_group, out)
        out.timers.append(Schedule(_EXPIRE, self._config.offsets_retention_check_interval_ms))
        return out

    def on_unloaded(self, now_ms: int) -> Outcome:
        """Stop serving: everybody who waits is told to look for the new coordinator."""
        out = Outcome()
        for group in self.groups.values():
            group.to(DEAD, now_ms)
            for member in group.members.values():
                moved = ErrorCode.NOT_COORDINATOR
                answer_join(member, JoinGroupResponse(member_id=member.member_id, error_code=moved), out)
                answer_sync(member, SyncGroupResponse(error_code=moved), out)
        return out

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        """Route a timer to what it ends; one whose handler fails is not lost, as nobody would set it again."""
        try:
            found = self._on_timer(key, now_ms)
        except Exception:
            log.exception("timer %r failed, and is tried again", key)
            return Outcome(timers=[Schedule(key, _FAILED_TIMER_MS)])
        if found is None:
            raise ValueError(f"no timer {key!r}")
        return found

    def _on_timer(self, key: Hashable, now_ms: int) -> Outcome | None:
        out = Outcome()
        match key:
            case ("session", str(group_id), str(member_id)):
                group = self._alive(group_id)
                if group is not None:
                    self._rebalances.on_session_timer(group, member_id, out, now_ms)
            case ("join", str(group_id)):
                group = self._alive(group_id)
                if group is not None:
                    self._rebalances.on_join_timer(group, out, now_ms)
            case ("sync", str(group_id)):
                group = self._alive(group_id)
                if group is not None:
                    self._rebalances.on_sync_timer(group, out, now_ms)
            case ("expire",):
                return self.expire(now_ms)
            case ("regex", str(group_id)):
                return self._regexes.on_timer(group_id, now_ms)
            case (str(kind), str(group_id), str(member_id)) if kind in TIMER_KINDS:
                consumer_group = self.consumer_groups.get(group_id)
                if consumer_group is not None:
                    return self._heartbeats.on_timer(consumer_group, kind, member_id, now_ms)
            case _:
                return None
        return out

    def _alive(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return None if group is None or group.state is DEAD else group

    # -- requests

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, parked: Parked, now_ms: int
    ) -> Outcome:
        join = Join(request, version, client_id, client_host, parked, now_ms)
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            return self._membership.join(join)
        return self._join_empty(group, join) if group.is_empty else self._classic_members.join(group, join)

    def _join_empty(self, group: ConsumerGroup, join: Join) -> Outcome:
        """Make a classic group of a consumer group without members, as its first member is of the classic protocol."""
        if join.request.member_id:
            join.fail(ErrorCode.UNKNOWN_MEMBER_ID, join.request.member_id)
            return join.out
        group_id = group.group_id
        del self.consumer_groups[group_id]
        try:
            out = self._membership.join(join)
        except Exception:
            self.groups.pop(group_id, None)
            self.consumer_groups[group_id] = group
            raise
        out.records[:0] = consumer_records.group_tombstones(group)
        before = out.after

        def after(code: ErrorCode, now_ms: int) -> Outcome:
            done = Outcome() if before is None else before(code, now_ms)
            if code is not ErrorCode.NONE and group_id not in self.groups:
                self.consumer_groups[group_id] = group
            return done

        out.after = after
        return out

    def sync(self, request: SyncGroupRequest, parked: Parked, now_ms: int) -> Outcome:
        group = self.consumer_groups.get(request.group_id)
        if group is None or group.is_empty:
            return self._membership.sync(request, parked, now_ms)
        return self._classic_members.sync(group, request, parked)

    def heartbeat(self, request: HeartbeatRequest) -> Outcome:
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            return self._membership.heartbeat(request)
        return self._classic_members.heartbeat(group, request)

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str, now_ms: int
    ) -> Outcome:
        return self._heartbeats.heartbeat(request, client_id, client_host, now_ms)

    def leave(self, group_id: str, members: list[MemberIdentity], now_ms: int) -> Outcome:
        group = self.consumer_groups.get(group_id)
        if group is not None:
            return self._classic_members.leave(group, members, now_ms)
        return self._membership.leave(group_id, members, now_ms)

    def commit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> Outcome:
        return self.offsets.commit(request, version, now_ms)

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, guard: object, now_ms: int) -> Outcome:
        return self.offsets.commit_in_transaction(request, guard, now_ms)

    def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        return self.offsets.fetch(request, require_stable)

    def delete_offsets(self, request: OffsetDeleteRequest) -> Outcome:
        return self.offsets.delete(request)

    def delete_groups(self, group_ids: Sequence[str]) -> Outcome:
        """Handle a DeleteGroups of groups of this partition: each is deleted or has its own error."""
        out = Outcome()
        results = []
        for group_id in group_ids:
            group = self.consumer_groups.get(group_id) or self._alive(group_id)
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                code = ErrorCode.NONE
                out.records += self.offsets.delete_all(group_id)
                out.records += _tombstones(group)
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        out.reply = results
        return out

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """Describe a group. One that does not exist is Dead, and an error only since version 6 (KIP-1043)."""
        group = self.groups.get(group_id)
        if group is None:
            if version >= ERROR_MESSAGE_SINCE:
                reason = "is not a classic group" if group_id in self.consumer_groups else "not found"
                return DescribedGroup(
                    group_id=group_id,
                    group_state=DEAD.value,
                    error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                    error_message=f"Group {group_id} {reason}.",
                )
            return DescribedGroup(group_id=group_id, group_state=DEAD.value)
        protocol = group.protocol_name if group.state is STABLE else None
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=[
                DescribedGroupMember(
                    member_id=m.member_id,
                    group_instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    member_metadata=b"" if protocol is None else m.metadata(protocol),
                    member_assignment=m.assignment,
                )
                for m in group.members.values()
            ],
        )

    def describe_consumer_group(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        """Describe a consumer group; one that is not, or is none, is GROUP_ID_NOT_FOUND."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            reason = "is not a consumer group" if group_id in self.groups else "not found"
            return consumer_group_describe.DescribedGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {reason}.",
            )
        return consumer_describe.describe(group, self._config.consumer_assignors[0], self._topics)

    def list(self, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        """List the groups in these states and of these types; case does not matter, an empty filter is none."""
        wanted = {state.strip().lower() for state in states}
        kinds = {name.lower() for name in types} or {CLASSIC_TYPE, CONSUMER_TYPE}
        listed: list[ListedGroup] = []
        for kind, groups in ((CLASSIC_TYPE, self.groups), (CONSUMER_TYPE, self.consumer_groups)):
            if kind not in kinds:
                continue
            for group in groups.values():
                state = group.state.value
                if not wanted or state.lower() in wanted:
                    protocol_type = group.protocol_type or ""
                    listed.append(
                        ListedGroup(
                            group_id=group.group_id, protocol_type=protocol_type, group_state=state, group_type=kind
                        )
                    )
        return listed

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> Outcome:
        """Forget the offsets in deleted topics (name to id)."""
        return Outcome(records=self.offsets.on_topics_deleted(deleted), atomic=False)

    def expire(self, now_ms: int) -> Outcome:
        """Delete expired offsets, and groups that have neither members nor offsets: a slice of the groups at a time."""
        out = Outcome(atomic=False)
        if not self._unexpired:
            self._unexpired = [*self.groups, *self.consumer_groups]
        until = self._seconds() + EXPIRE_SLICE_SECONDS
        while self._unexpired:
            group_id = self._unexpired.pop()
            group = self.groups.get(group_id) or self.consumer_groups.get(group_id)
            if group is not None:
                tombstones, none_left = self.offsets.expired(group, now_ms)
                out.records += tombstones
                if none_left and group.is_empty:
                    out.records += _tombstones(group)
            if self._seconds() >= until:
                break
        if out.records:
            log.info("%d tombstones of expired offsets and groups", len(out.records))
        delay = 0 if self._unexpired else self._config.offsets_retention_check_interval_ms
        out.timers.append(Schedule(_EXPIRE, delay))
        return out


def _tombstones(group: ClassicGroup | ConsumerGroup) -> list[CoordinatorRecord]:
    """Return what deletes a group, though not its offsets."""
    if isinstance(group, ConsumerGroup):
        return consumer_records.group_tombstones(group)
    return [records.group_tombstone(group.group_id)]


def restore(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Return the group that a record describes: Stable if it has members, else Empty."""
    group = ClassicGroup(group_id, value.current_state_timestamp)
    group.generation = value.generation
    group.protocol_name = value.protocol
    group.leader_id = value.leader
    for member in value.members:
        group.add(
            Member(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.session_timeout
                if member.rebalance_timeout == -1
                else member.rebalance_timeout,
                session_timeout_ms=member.session_timeout,
                protocol_type=value.protocol_type,
                protocols=((value.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
        )
    group.protocol_type = value.protocol_type or None
    if group.members:
        group.state = STABLE
        group.unled = value.leader is None
    return group
