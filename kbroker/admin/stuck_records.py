"""Records that groups do not get past: listing them, and letting a group skip one.

Owns the request to all brokers: kbroker returns these records in the list of groups, but Apache Kafka does not. Owns
the skip: one transaction copies the record to a dead letter topic and commits the offset after it. So the record is
neither lost nor copied twice. The group may have members: the next member that owns the partition reads the new offset.
The copy has the headers of a share group's dead letters (KIP-1191), for `kbroker deadletter`. Never skips by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker.admin.configs import topic_config
from kbroker.admin.connection import Connection, patiently
from kbroker.admin.dead_letters import SHARE, topic_view
from kbroker.admin.did_you_mean import no_such_group
from kbroker.admin.errors import AdminError, code_error
from kbroker.admin.fetching import Found
from kbroker.admin.group_offsets import committed_offsets
from kbroker.admin.own_request import ask_broker, live_brokers
from kbroker.admin.own_transaction import PATIENCE_S, in_time, reason_of, transactional_producer
from kbroker.admin.partition_reader import PartitionReader
from kbroker.admin.schedules import takes_no_records
from kbroker.cluster_state import VIEW_SOURCE
from kbroker.protocol.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_WITH_TAGS: Final = 3
"""The first version of ListGroups whose answer can contain stuck records."""
_READ_AGAIN, _DELIVERED_AGAIN = "read again", "delivered again"
SKIPPED: Final = "Skipped by an operator."
"""The message in the copy of a skipped record."""


@dataclass(frozen=True, slots=True)
class StuckRecord:
    """A record that a group does not get past."""

    group: str
    topic: str
    partition: int
    offset: int
    cause: str
    """The evidence that the record is stuck.

    "left": owners of the partition left without a commit; "read again": a member fetches the record again and again;
    "delivered again": a share group has delivered the record several times.
    """
    times: int
    """How often the cause was observed: owners that left, checks that saw the same fetch, or deliveries."""
    since_ms: int
    """The time of the first evidence, in ms since 1970."""

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}, offset {self.offset}"

    @property
    def has_running_reader(self) -> bool:
        """Whether a member reads the record again and again.

        Such a member keeps its own position: a new offset of the group does not move the member.
        """
        return self.cause == _READ_AGAIN


def stuck_records(admin: Any, groups: Iterable[str] = ()) -> list[StuckRecord]:
    """Return the records that groups do not get past, by group: of `groups`, or of all groups if `groups` is empty.

    The list is empty for a Kafka that does not look for such records. Raises AdminError if one of `groups` does not
    exist.
    """
    wanted = set(groups)
    listed = [group for node in patiently(lambda: live_brokers(admin)) for group in _listed(admin, node)]
    missing = wanted - {group.group_id for group in listed}
    if missing:
        raise AdminError(no_such_group(admin, min(missing)))
    found = [
        StuckRecord(group.group_id, one.topic, one.partition, one.offset, one.cause, one.times, one.since_ms)
        for group in listed
        if not wanted or group.group_id in wanted
        for one in group.stuck
    ]
    return sorted(found, key=lambda each: (each.group, each.topic, each.partition))


def _listed(admin: Any, node: int) -> list[ListedGroup]:
    def once() -> list[ListedGroup]:
        answer = ask_broker(admin, node, ListGroupsRequest(), ListGroupsResponse, at_least=_WITH_TAGS)
        error = code_error(answer.error_code)
        if error is not None:
            raise error
        return answer.groups

    return patiently(once)


def record_at(reader: PartitionReader, stuck: StuckRecord) -> Found | None:
    """Return the record that the group reads next; None if the record is gone."""
    piece = reader.fetch((stuck.topic, stuck.partition), stuck.offset)
    return next((each for each in piece.records if each.offset >= stuck.offset), None)


@dataclass(frozen=True, slots=True)
class Skip:
    """A skip that is possible now: the record, and the topic of its copy; `to` is None if the record is not copied."""

    stuck: StuckRecord
    record: Found
    to: tuple[str, int] | None
    origin: str
    """The topic that has the record: the source if the group reads a view."""


def plan_skip(admin: Any, group: str, place: tuple[str, int] | None, to: str | None, *, drop: bool) -> Skip:
    """Return the plan to skip the record that a group does not get past.

    If there are several such records, `place` selects one by its partition. The copy goes to `to`, by default to
    dlq.TOPIC; with `drop` there is no copy. Raises AdminError.
    """
    found = [each for each in stuck_records(admin, [group]) if place in (None, (each.topic, each.partition))]
    if not found:
        where = "" if place is None else f" in {place[0]}-{place[1]}"
        remedy = "`kbroker group stuck` lists them"
        raise AdminError(f"no broker reports a record that group {group} does not get past{where}; {remedy}")
    if len(found) > 1:
        named = f"--at {found[0].topic}:{found[0].partition}"
        raise AdminError(f"group {group} makes no progress in {len(found)} partitions; choose one of them, as {named}")
    stuck = found[0]
    if stuck.cause == _DELIVERED_AGAIN:
        raise AdminError(f"{group} is a share group: it gives a record up after share.delivery.count.limit deliveries")
    record = record_at(PartitionReader(admin), stuck)
    if record is None:
        raise AdminError(f"the record at {stuck.place} is gone")
    origin = topic_config(admin, [stuck.topic], VIEW_SOURCE).get(stuck.topic) or stuck.topic
    if drop:
        return Skip(stuck, record, None, origin)
    target = topic_view(admin, to or f"dlq.{stuck.topic}")
    unfit = takes_no_records(admin, target.name)
    if target.internal or target.name in (stuck.topic, origin) or unfit is not None:
        why = "" if unfit is None else f": it {unfit}"
        raise AdminError(f"{target.name} cannot be the dead letter topic of {stuck.topic}{why}")
    return Skip(stuck, record, (target.name, stuck.partition % len(target.partitions)), origin)


def execute_skip(connection: Connection, admin: Any, skip: Skip) -> None:
    """Copy the record and commit the offset after it, in one transaction.

    Raises AdminError, also if the group has committed another offset meanwhile.
    """
    stuck, record = skip.stuck, skip.record
    partition = TopicPartition(stuck.topic, stuck.partition)
    with transactional_producer(connection, f"kbroker-skip-{stuck.group}-{stuck.topic}-{stuck.partition}") as producer:
        if committed_offsets(admin, stuck.group).get(partition) != stuck.offset:
            raise AdminError(f"group {stuck.group} is not at {stuck.place} any more; look again")
        try:
            producer.begin_transaction()
            if skip.to is not None:
                sent = producer.send(skip.to[0], (record.value,), record.key, _headers(skip), skip.to[1])
                producer.flush(timeout=PATIENCE_S)
                sent.get(PATIENCE_S)
            offsets = {partition: OffsetAndMetadata(record.offset + 1, "", -1)}
            in_time(lambda: producer.send_offsets_to_transaction(offsets, stuck.group))
        except (KafkaError, TimeoutError, ValueError) as error:
            raise AdminError(f"the record at {stuck.place} was not skipped: {reason_of(error)}") from error
        try:
            in_time(producer.commit_transaction)
        except (KafkaError, TimeoutError) as error:
            raise AdminError(f"it is not known whether the record at {stuck.place} was skipped; look again") from error


def _headers(skip: Skip) -> list[tuple[str, bytes]]:
    stuck, record = skip.stuck, skip.record
    facts = {
        "topic": skip.origin,
        "partition": stuck.partition,
        "offset": record.offset,
        "group": stuck.group,
        "delivery.count": stuck.times,
        "message": SKIPPED,
    }
    # kafka-python cannot write a header without a value; the original record stays as it is.
    kept = [(name, value or b"") for name, value in record.headers if not name.startswith(SHARE)]
    return [*kept, *((f"{SHARE}{name}", str(value).encode()) for name, value in facts.items())]
