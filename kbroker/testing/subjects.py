"""The subjects of a request (topics, partitions, groups, transactional ids), and its division by topic.

Reads any request by the names of its fields, which are uniform in Kafka's schemas. Divides requests and answers by
topic and partition. Never reads bytes, and knows no particular API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from kbroker.protocol.schema import Scalar

Keeps = Callable[[str | None, int | None], bool]
"""A function that returns whether a topic (by name), or one of its partitions, belongs to a part of a request."""
Names = Callable[[bytes], "str | None"]
"""A function that returns the name of the topic that has an id."""

_TOPICS = frozenset(
    {
        "topics", "topic_data", "topic_names", "responses", "results_by_topic_v3_and_below", "topic_results",
        "v3_and_below_topics", "subscribed_topic_names", "topic_partitions",
    }
)  # fmt: skip
_PARTITIONS = frozenset(
    {"partitions", "partition_data", "partition_indexes", "partition_responses", "results_by_partition"}
)
_INDEXES = ("partition_index", "partition", "index")
_GROUPS = frozenset({"group_id"})
_GROUP_LISTS = frozenset({"groups", "groups_names", "group_ids"})
_TRANSACTIONS = frozenset({"transactional_id", "v3_and_below_transactional_id"})
_NO_ID = bytes(16)


@dataclass(slots=True)
class Subjects:
    """The names in a request. A topic's set of partitions is empty if the request names only the topic."""

    topics: dict[str, set[int]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    transactional_ids: set[str] = field(default_factory=set)


def subjects_of(request: Any, names: Names) -> Subjects:
    """Return the topics, groups and transactional ids in a request."""
    found = Subjects()
    _collect(request, names, found)
    return found


def _collect(struct: Any, names: Names, found: Subjects) -> None:
    for spec in type(struct).SPECS:
        value = getattr(struct, spec.name)
        if value is None or value == "":
            continue
        if spec.name in _GROUPS:
            found.groups.add(value)
        elif spec.name in _TRANSACTIONS:
            found.transactional_ids.add(value)
        elif spec.name in _GROUP_LISTS and isinstance(spec.kind, Scalar):
            found.groups.update(value)
        elif spec.name in _TOPICS and spec.array:
            for each in value:
                name = topic_name(each, names)
                if name is not None:
                    found.topics.setdefault(name, set()).update(_indexes(each))
        elif spec.array and not isinstance(spec.kind, Scalar):
            for each in value:
                _collect(each, names, found)
    if hasattr(struct, "key_type") and hasattr(struct, "coordinator_keys"):
        keys = [*struct.coordinator_keys, *([struct.key] if struct.key else [])]
        (found.groups if struct.key_type == 0 else found.transactional_ids).update(keys)


def could_name(request: type[Any]) -> frozenset[str]:
    """Return the filters that requests of a class can match: topic, partition, group, transactional_id."""
    found: set[str] = set()
    for spec in request.SPECS:
        scalar = isinstance(spec.kind, Scalar)
        if spec.name == "coordinator_keys":
            found |= {"group", "transactional_id"}
        if spec.name in _GROUPS or (spec.name in _GROUP_LISTS and scalar):
            found.add("group")
        elif spec.name in _TRANSACTIONS:
            found.add("transactional_id")
        elif spec.name in _TOPICS and spec.array:
            found.add("topic")
            if not scalar and any(each.name in _PARTITIONS for each in spec.kind.SPECS):
                found.add("partition")
        elif spec.array and not scalar:
            found |= could_name(spec.kind)
    return frozenset(found)


def topic_name(element: Any, names: Names) -> str | None:
    """Return the topic name of an element in a list of topics; None if the topic id is unknown."""
    if isinstance(element, str):
        return element
    name = getattr(element, "name", None) or getattr(element, "topic", None)
    if name:
        return str(name)
    topic_id = getattr(element, "topic_id", _NO_ID)
    return names(topic_id) if topic_id != _NO_ID else None


def partitions_field(element: Any) -> str | None:
    """Return the name of the field with an element's list of partitions, if it has such a field."""
    return next((spec.name for spec in getattr(type(element), "SPECS", ()) if spec.name in _PARTITIONS), None)


def index_of(partition: Any) -> int:
    """Return the partition index of an element in a list of partitions."""
    if isinstance(partition, int):
        return partition
    return int(next(getattr(partition, name) for name in _INDEXES if hasattr(partition, name)))


def _indexes(element: Any) -> Iterator[int]:
    name = partitions_field(element)
    if name is not None:
        for each in getattr(element, name) or ():
            yield index_of(each)


def part_of(message: Any, keeps: Keeps, names: Names) -> tuple[Any, bool]:
    """Return a copy of a message with only some topics and partitions, and whether the copy has any topics.

    Fields without topics are in every copy.
    """
    part, some = copy(message), False
    for spec in type(message).SPECS:
        value = getattr(message, spec.name)
        if not spec.array or not value:
            continue
        if spec.name in _TOPICS:
            kept = list(_kept(value, keeps, names))
            some = some or bool(kept)
            setattr(part, spec.name, kept)
        elif not isinstance(spec.kind, Scalar) and any(each.name in _TOPICS for each in spec.kind.SPECS):
            inner = [part_of(each, keeps, names) for each in value]
            some = some or any(has for _, has in inner)
            setattr(part, spec.name, [each for each, has in inner if has])
    return part, some


def _kept(topics: Iterable[Any], keeps: Keeps, names: Names) -> Iterator[Any]:
    for topic in topics:
        name, lists = topic_name(topic, names), partitions_field(topic)
        partitions = [] if lists is None else getattr(topic, lists) or []
        if lists is None or not partitions:
            if keeps(name, None):
                yield topic
            continue
        kept = [each for each in partitions if keeps(name, index_of(each))]
        if kept:
            part = copy(topic)
            setattr(part, lists, kept)
            yield part


def joined(answer: Any, other: Any, names: Names) -> Any:
    """Return an answer that also contains the topics and partitions of another answer of the same API."""
    whole = copy(answer)
    for spec in type(answer).SPECS:
        kept, added = getattr(answer, spec.name), getattr(other, spec.name)
        if not spec.array or not added:
            continue
        if spec.name in _TOPICS:
            setattr(whole, spec.name, _joined_topics(kept or [], added, names))
        elif not isinstance(spec.kind, Scalar) and any(each.name in _TOPICS for each in spec.kind.SPECS):
            setattr(whole, spec.name, _joined_lists(kept or [], added, names))
        elif not kept:
            setattr(whole, spec.name, added)
    return whole


def _joined_topics(kept: list[Any], added: list[Any], names: Names) -> list[Any]:
    result, places = list(kept), {topic_name(each, names): at for at, each in enumerate(kept)}
    for topic in added:
        at, lists = places.get(topic_name(topic, names)), partitions_field(topic)
        if at is None or lists is None:
            result.append(topic)
            continue
        both = copy(result[at])
        setattr(both, lists, [*(getattr(both, lists) or []), *(getattr(topic, lists) or [])])
        result[at] = both
    return result


def _joined_lists(kept: list[Any], added: list[Any], names: Names) -> list[Any]:
    """Join two lists by group or transaction. `added` has further topics of the groups or transactions in `kept`."""

    def own(each: Any) -> Any:
        return getattr(each, "group_id", None) or getattr(each, "transactional_id", None)

    places = {own(each): at for at, each in enumerate(kept)}
    result = list(kept)
    for each in added:
        at = places.get(own(each))
        if at is None:
            result.append(each)
        else:
            result[at] = joined(result[at], each, names)
    return result
