"""Offsets of partitions by ListOffsets: first offsets, end offsets, and the offsets of the first records after a time.

Owns the request with all of its special times, because kafka-python has only some of them. Owns the formats in which
people write a time: ms since 1970, or ISO 8601. A time in ISO 8601 without a zone is in UTC. Never prints.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kafka.errors import IncompatibleBrokerVersion, KafkaError, OffsetNotAvailableError
from kafka.structs import TopicPartition

from kbroker.admin.connection import patiently
from kbroker.admin.errors import AdminError, WrongInput, code_error, error_text
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)


def parse_time(text: str) -> int:
    """Parse a time in ms or in ISO 8601; return it in ms. Raises WrongInput."""
    if text.isdecimal():
        return int(text)
    try:
        return parse_iso(text)
    except ValueError:
        raise WrongInput(f"{text!r} is no time: write ms since 1970 or 2026-01-31T12:00:00Z") from None


def parse_iso(text: str) -> int:
    """Parse a time in ISO 8601; return it in ms. Raises ValueError."""
    when = datetime.datetime.fromisoformat(text)
    return int(when.replace(tzinfo=when.tzinfo or datetime.UTC).timestamp() * 1000)


SPECIAL: Final[Mapping[str, tuple[int, int]]] = {
    "latest": (-1, 1),
    "earliest": (-2, 1),
    "max-timestamp": (-3, 7),
    "earliest-local": (-4, 8),
    "latest-tiered": (-5, 9),
    "earliest-pending-upload": (-6, 11),
}
"""Special values in place of a time, and the first API versions with them (KIP-734, KIP-405, KIP-1005, KIP-1023)."""
_ANY_VERSION: Final = 1
_A_CLIENT: Final = -1
"""The replica id of a client. A request with a follower's id would also return offsets above the high watermark."""
_TIMEOUT_MS: Final = 30_000


def offsets_at(
    admin: Any, led: Mapping[Key, int], time_ms: int, at_least: int = _ANY_VERSION
) -> tuple[dict[Key, tuple[int, int]], list[str]]:
    """Return offsets and timestamps of partitions (-1 where the leader finds no record), and the errors of leaders."""
    found, refused = {}, []
    for key, code, offset, timestamp in _request(admin, led, time_ms, at_least):
        error = code_error(code)
        if error is None:
            found[key] = (offset, timestamp)
        else:
            refused.append(f"{key[0]}-{key[1]}: {error_text(error)}")
    return found, refused


def retried_offsets_at(admin: Any, led: Mapping[TopicPartition, int], spec: int) -> dict[TopicPartition, int]:
    """Return offsets of partitions from their leaders; retry while leaders move.

    Leaves out a partition whose leader does not know the offset yet: after an election the leader's high watermark may
    be behind for a moment (KIP-207).
    """

    def ask() -> dict[TopicPartition, int] | None:
        try:
            found = admin.list_partition_offsets(dict.fromkeys(led, spec))
        except OffsetNotAvailableError:
            return None  # if one partition has this error, the client raises it for all partitions
        return {each: at.offset for each, at in found.items()}

    found = patiently(ask) if led else {}
    if found is None:
        known = known_offsets_at(admin, {(each.topic, each.partition): leader for each, leader in led.items()}, spec)
        found = {TopicPartition(*key): offset for key, offset in known.items()}
    return found


def known_offsets_at(admin: Any, led: Mapping[Key, int], time_ms: int) -> dict[Key, int]:
    """Return offsets like `offsets_at`; leave out partitions whose broker is unreachable or no longer leads them."""
    found: dict[Key, int] = {}
    for broker in sorted(set(led.values())):
        of_one = {key: leader for key, leader in led.items() if leader == broker}
        with contextlib.suppress(KafkaError):
            results = _request(admin, of_one, time_ms, _ANY_VERSION)
            found.update({key: offset for key, code, offset, _ in results if not code and offset >= 0})
    return found


def _request(admin: Any, led: Mapping[Key, int], time_ms: int, at_least: int) -> Iterator[tuple[Key, int, int, int]]:
    """Send ListOffsets to the leaders; yield partition, error code, offset and timestamp."""
    by_broker: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    for (name, index), leader in led.items():
        topics = by_broker.setdefault(leader, {})
        topics.setdefault(name, []).append(ListOffsetsPartition(index, timestamp=time_ms))
    for broker in sorted(by_broker):
        wanted = [ListOffsetsTopic(*each) for each in by_broker[broker].items()]
        request = ListOffsetsRequest(_A_CLIENT, topics=wanted, timeout_ms=_TIMEOUT_MS)
        try:
            answer = ask_broker(admin, broker, request, ListOffsetsResponse, at_least)
        except IncompatibleBrokerVersion:
            raise AdminError(f"broker {broker} does not support this time") from None
        for topic in answer.topics:
            for each in topic.partitions:
                yield (topic.name, each.partition_index), each.error_code, each.offset, each.timestamp
