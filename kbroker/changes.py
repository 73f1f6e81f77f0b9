"""Changes of a cluster that every surface offers, one declaration each: the table `CHANGES`.

A declaration has the change's name, arguments and help, the requests to Kafka, and the refusals in their answers. The
surfaces make from it: the verb (cli/changes.py); button, form and action of the console (console/changes.py); the
route of the control API (control/changes.py); the work of a method of the test kit (testing/changes.py). A change with
arguments of its own on one surface, like creating a topic, is no row of this table.

Never sends a request itself: the surface passes the `Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

Answer = TypeVar("Answer")
Values = Mapping[str, Any]
"""The values of a change's fields, by name; one that was not given is missing."""
NO_COORDINATOR: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""The errors after which a request is sent again, to the group's coordinator of then."""
NO_CONTROLLER: Final = frozenset({ErrorCode.NOT_CONTROLLER})
_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Field:
    """One named argument. `kind` is a key of control/values.py's table; `least` and `most` bound numbers."""

    name: str
    kind: str
    meaning: str
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    def fault(self, value: Any) -> str | None:
        """Return a line about a value of this kind that the field refuses; None if it does not."""
        if self.choices and value not in self.choices:
            return f"{self.name} is one of {', '.join(self.choices)}, not {value[:100]!r}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                return f"{self.name} is at least {self.least:g}, not {value}"
            if self.most is not None and value > self.most:
                return f"{self.name} is at most {self.most:g}, not {value}"
        return None


class Failure(NamedTuple):
    """One refusal by Kafka: `name` is the entity to be changed, `about` the part of it that was refused."""

    name: str
    about: str
    code: int
    message: str | None = None
    missing: str = ""
    """"topic" or "group" if `about` is the name of one that does not exist."""


class Cluster(Protocol):
    """Sends requests to the broker that may answer them, again while the right broker changes.

    `code` returns an answer's error code, by which the sender sees such a change.
    """

    def ask_coordinator(
        self, group: str, request: Any, kind: type[Answer], code: Callable[[Answer], int], /
    ) -> Answer: ...

    def ask_controller(self, request: Any, kind: type[Answer], code: Callable[[Answer], int], /) -> Answer: ...

    def partitions_of(self, topic: str, /) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""
        ...

    def wait_for_partitions(self, topics: Sequence[str], count: int, /) -> None:
        """Wait until every broker knows this number of partitions of topics, 0 if they were deleted. Never fails."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one or several entities of a kind.

    `run` sends the requests and returns the refusals; it raises ValueError for arguments that cannot be. An entity
    without a refusal is changed.
    """

    of: str
    """The kind of entity, "topic" or "group": the noun of the verb, and the name of the argument with its name."""
    name: str
    """The verb. The test kit's method has the same name, with underscores, in testing/topics.py or groups.py."""
    title: str
    """The text of the console's button."""
    summary: str
    """A sentence for help texts."""
    route: str
    """Method and path in the control API, with the entity's name in braces."""
    run: Callable[[Cluster, Sequence[str], Values], list[Failure]]
    done: str
    """The text of a success, with the entity's name and the fields in braces."""
    warning: str
    """The text of the console's form."""
    fields: tuple[Field, ...] = ()
    destroys: bool = True
    """Whether the console asks for the entity's name as confirmation."""
    deletes: bool = False
    """Whether the entity itself is gone afterwards."""

    @property
    def slug(self) -> str:
        """The name among those of all kinds, "topic-delete"."""
        return f"{self.of}-{self.name}"

    def make(self, cluster: Cluster, names: Sequence[str], values: Values) -> list[Failure]:
        """Check the values, and run the change. Raises ValueError."""
        for field in self.fields:
            if field.name in values:
                fault = field.fault(values[field.name])
            else:
                fault = f"{field.name} is missing: {field.meaning}" if field.required else None
            if fault is not None:
                raise ValueError(fault)
        return self.run(cluster, names, values)

    def done_text(self, name: str, values: Values) -> str:
        """Return the text of a success."""
        texts = {key: ", ".join(each) if isinstance(each, list | tuple) else each for key, each in values.items()}
        return self.done.format(**{self.of: name}, **texts)


def partitions_by_topic(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Return the partitions that texts like "orders" and "orders:0,2" name, None for all; raises ValueError."""
    found: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not all(each.isdecimal() for each in parts):
            raise ValueError(f"a topic is TOPIC or TOPIC:0,1, not {text!r}")
        found[topic] = {*map(int, parts), *(found.get(topic) or ())} if parts else None
    return found


def _delete_topics(cluster: Cluster, names: Sequence[str], _: Values) -> list[Failure]:
    request = DeleteTopicsRequest([DeleteTopicState(name=each) for each in names], timeout_ms=_TIMEOUT_MS)
    answer = cluster.ask_controller(request, DeleteTopicsResponse, lambda each: each.responses[0].error_code)
    failures = [
        _failure(str(each.name), str(each.name), each.error_code, each.error_message, "topic")
        for each in answer.responses
        if each.error_code
    ]
    refused = {each.name for each in failures}
    cluster.wait_for_partitions([each for each in names if each not in refused], 0)
    return failures


def _delete_groups(cluster: Cluster, names: Sequence[str], _: Values) -> list[Failure]:
    failures = []
    for name in names:
        answer = cluster.ask_coordinator(
            name, DeleteGroupsRequest([name]), DeleteGroupsResponse, lambda each: each.results[0].error_code
        )
        if answer.results[0].error_code:
            failures.append(_failure(name, name, answer.results[0].error_code, None, "group"))
    return failures


def _delete_offsets(cluster: Cluster, names: Sequence[str], values: Values) -> list[Failure]:
    topics = []
    for topic, chosen in partitions_by_topic(values["topic"]).items():
        count = cluster.partitions_of(topic)
        if not count:
            return [Failure(each, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, "topic") for each in names]
        for number in sorted(chosen or ()):
            if number >= count:
                raise ValueError(f"topic {topic} has no partition {number}")
        wanted = [OffsetDeleteRequestPartition(each) for each in sorted(chosen or range(count))]
        topics.append(OffsetDeleteRequestTopic(topic, wanted))
    failures = []
    for name in names:
        request = OffsetDeleteRequest(name, topics)
        answer = cluster.ask_coordinator(name, request, OffsetDeleteResponse, lambda each: each.error_code)
        if answer.error_code:
            failures.append(_failure(name, name, answer.error_code, None, "group"))
        failures += [
            Failure(name, f"{topic.name} {each.partition_index}", each.error_code)
            for topic in answer.topics
            for each in topic.partitions
            if each.error_code
        ]
    return failures


_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)


def _failure(name: str, about: str, code: int, message: str | None, kind: str) -> Failure:
    return Failure(name, about, code, message, kind if code in _MISSING else "")


TOPIC_DELETE: Final = Change(
    "topic",
    "delete",
    "Delete topic",
    "Delete topics with everything in them.",
    "DELETE /topics/{topic}",
    _delete_topics,
    done="deleted {topic}",
    warning="The topic is deleted with all its records. It cannot be restored.",
    deletes=True,
)
GROUP_DELETE: Final = Change(
    "group",
    "delete",
    "Delete group",
    "Delete groups that have no members, with their committed offsets.",
    "DELETE /groups/{group}",
    _delete_groups,
    done="deleted {group}",
    warning="The committed offsets are deleted with the group. Its consumers then start where auto.offset.reset says.",
    deletes=True,
)
GROUP_DELETE_OFFSETS: Final = Change(
    "group",
    "delete-offsets",
    "Delete offsets",
    "Delete committed offsets of topics that no member of the group reads.",
    "POST /delete-offsets/{group}",
    _delete_offsets,
    done="deleted the offsets of {topic} in {group}",
    warning="The group's consumers of the topic then start where auto.offset.reset says.",
    fields=(Field("topic", "names", "Of these, as TOPIC or TOPIC:0,1.", required=True),),
)
CHANGES: Final = (TOPIC_DELETE, GROUP_DELETE_OFFSETS, GROUP_DELETE)
