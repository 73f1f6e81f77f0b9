"""Changes of a cluster that every surface (command line, console and so on) offers, declared in the table `CHANGES`.

A declaration has the change's name, arguments and help, the requests to Kafka, and the refusals in their answers. The
surfaces derive their parts from it: the command line its verb (cli/changes.py); the console its button, form and action
(console/changes.py); the control API its route (control/changes.py); the test kit the work of a method
(testing/changes.py). A change that has arguments of its own on one surface, like creating a topic, is not in this
table.

A new row also needs parts that are written by hand: the method of the test kit (`Change.name`), the right in the hint
of cli/remedies.py, a case in tests/console/test_actions.py, and lines in CHANGELOG.md, docs/cli.md, console.md,
testing.md and testing-other-languages.md. `make docs` makes the pages of the manual.

Never sends a request itself: the surface passes the `Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kbroker.fields import Field, WrongValue
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.share_groups import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from kbroker.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

Answer = TypeVar("Answer")
Values = Mapping[str, Any]
"""The values of a change's fields, by name. A field without a value is missing."""
NO_COORDINATOR: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""The errors after which a request is sent again, to the group's new coordinator."""
_DIGITS: Final = 10
"""The maximum number of digits of a partition's number."""
NO_CONTROLLER: Final = frozenset({ErrorCode.NOT_CONTROLLER})
_TIMEOUT_MS: Final = 30_000


class Failure(NamedTuple):
    """One refusal by Kafka.

    `name` is the entity to change; `about` is its refused part, or empty for the complete entity.
    """

    name: str
    code: int
    about: str = ""
    message: str | None = None
    missing: str = ""
    """The kind of the entity, "topic" or "group", if no entity of this kind has the name in `about`; otherwise ""."""


class Unanswered(Exception):  # noqa: N818 - an outcome
    """No broker answered a request. The fields are Kafka's error code (-1 if there is none) and a line for people."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Cluster(Protocol):
    """Sends requests to the right broker; retries while the right broker changes.

    Raises Unanswered. `code` returns an answer's error code; the sender detects a change of the right broker by this
    code.
    """

    def ask_coordinator(
        self, group: str, request: Any, kind: type[Answer], code: Callable[[Answer], int], /
    ) -> Answer: ...

    def by_coordinator(self, groups: Sequence[str], /) -> list[Sequence[str]]:
        """Divide groups into lists, one for each coordinator."""
        ...

    def ask_controller(self, request: Any, kind: type[Answer], code: Callable[[Answer], int], /) -> Answer: ...

    def type_of(self, group: str, /) -> str:
        """Return a group's type, like "share"; "" if the group does not exist."""
        ...

    def partitions_of(self, topic: str, /) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""
        ...

    def wait_for_partitions(self, topics: Sequence[str], count: int, /) -> None:
        """Wait until every broker knows this number of partitions of topics (0 for deleted topics). Never fails."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one or several entities of a kind.

    `run` sends the requests and returns the refusals; it raises WrongValue for invalid arguments. An entity without a
    refusal is changed.
    """

    of: str
    """The kind of entity, "topic" or "group".

    This text is also the noun before the verb in `kbroker topic create`, and the name of the argument for the entity's
    name.
    """
    name: str
    """The verb. The test kit's method has the same name, with underscores, in testing/topics.py or groups.py."""
    title: str
    """The text of the console's button."""
    summary: str
    """A sentence for help texts."""
    route: str
    """Method and path in the control API, with the entity's name in braces."""
    run: Callable[[Cluster, Sequence[str], Values], list[Failure]]
    doing: str
    """The text that describes the change in questions and refusals.

    Braces contain the entity's name and the fields.
    """
    done: str
    """The text after a success, in the same form as `doing`."""
    warning: str
    """The text of the console's form."""
    fields: tuple[Field, ...] = ()
    destroys: bool = True
    """Whether the console requires the entity's name as confirmation."""
    deletes: bool = False
    """Whether the change deletes the entity itself."""

    @property
    def slug(self) -> str:
        """The unique name of the change among the changes of all kinds, like "topic-delete"."""
        return f"{self.of}-{self.name}"

    def make(self, cluster: Cluster, names: Sequence[str], values: Values) -> list[Failure]:
        """Check the values, and run the change. Raises WrongValue, and Unanswered if nothing is changed."""
        for field in self.fields:
            if field.name in values:
                field.check(values[field.name])
            elif field.required:
                raise WrongValue(f"{field.name} is missing: {field.meaning}")
        return self.run(cluster, names, values)

    def text(self, template: str, name: str, values: Values) -> str:
        """Return the text `doing` or `done`, filled with the name and the values."""
        texts = {key: ", ".join(each) if isinstance(each, list | tuple) else each for key, each in values.items()}
        return template.format(**{self.of: name}, **texts)


def partitions_by_topic(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Return the partitions in texts like "orders" and "orders:0,2", None for all. Raises WrongValue."""
    found: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not all(each.isdecimal() and len(each) <= _DIGITS for each in parts):
            raise WrongValue(f"a topic is TOPIC or TOPIC:0,1, not {text[:100]!r}")
        if not parts:
            found[topic] = None
        elif (chosen := found.setdefault(topic, set())) is not None:
            chosen.update(map(int, parts))
    return found


def _delete_topics(cluster: Cluster, names: Sequence[str], _: Values) -> list[Failure]:
    request = DeleteTopicsRequest([DeleteTopicState(name=each) for each in names], timeout_ms=_TIMEOUT_MS)
    answer = cluster.ask_controller(
        request, DeleteTopicsResponse, lambda each: next((one.error_code for one in each.responses), 0)
    )
    failures = [
        _failure(str(each.name), each.error_code, "topic", each.error_message)
        for each in answer.responses
        if each.error_code
    ]
    refused = {each.name for each in failures}
    cluster.wait_for_partitions([each for each in names if each not in refused], 0)
    return failures


def _delete_groups(cluster: Cluster, names: Sequence[str], _: Values) -> list[Failure]:
    """Send each coordinator one request to delete its groups; then delete the groups that have moved, one by one."""
    failures: list[Failure] = []
    moved: list[str] = []
    for groups in cluster.by_coordinator(names):
        try:
            answer = cluster.ask_coordinator(
                groups[0], DeleteGroupsRequest([*groups]), DeleteGroupsResponse, lambda _answer: 0
            )
        except Unanswered as error:
            failures += [Failure(each, error.code, message=str(error)) for each in groups]
            continue
        codes = {each.group_id: each.error_code for each in answer.results}
        moved += [each for each in groups if codes.get(each) in NO_COORDINATOR]
        failures += [
            _failure(name, code, "group") for name, code in codes.items() if code and code not in NO_COORDINATOR
        ]
    return failures + _one_by_one(moved, partial(_delete_group, cluster))


def _delete_group(cluster: Cluster, name: str) -> list[Failure]:
    answer = cluster.ask_coordinator(
        name, DeleteGroupsRequest([name]), DeleteGroupsResponse, lambda each: each.results[0].error_code
    )
    return [_failure(name, each.error_code, "group") for each in answer.results if each.error_code]


def _delete_offsets(cluster: Cluster, names: Sequence[str], values: Values) -> list[Failure]:
    topics = []
    for topic, chosen in partitions_by_topic(values["topic"]).items():
        count = cluster.partitions_of(topic)
        if not count:
            return [Failure(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic, missing="topic") for each in names]
        beyond = max(chosen or (0,))
        if beyond >= count:
            text = f"topic {topic} has no partition {beyond}"
            return [Failure(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=text) for each in names]
        wanted = [OffsetDeleteRequestPartition(each) for each in sorted(chosen or range(count))]
        topics.append(OffsetDeleteRequestTopic(topic, wanted))
    return _one_by_one(names, partial(_delete_offsets_of, cluster, topics))


def _delete_offsets_of(cluster: Cluster, topics: list[OffsetDeleteRequestTopic], name: str) -> list[Failure]:
    request = OffsetDeleteRequest(name, topics)
    answer = cluster.ask_coordinator(name, request, OffsetDeleteResponse, lambda each: each.error_code)
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND and cluster.type_of(name) == "share":
        return _delete_share_offsets(cluster, topics, name)
    if answer.error_code:
        return [_failure(name, answer.error_code, "group")]
    refused: dict[tuple[str, int], list[str]] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code:
                refused.setdefault((topic.name, each.error_code), []).append(str(each.partition_index))
    return [Failure(name, code, f"{topic} {', '.join(indexes)}") for (topic, code), indexes in refused.items()]


def _delete_share_offsets(cluster: Cluster, topics: list[OffsetDeleteRequestTopic], name: str) -> list[Failure]:
    """Delete a share group's start offsets. Kafka keeps or deletes the offsets of complete topics."""
    for each in topics:
        if len(each.partitions) < cluster.partitions_of(each.name):
            text = f"a share group's offsets are deleted for all partitions of {each.name} together"
            return [Failure(name, ErrorCode.INVALID_REQUEST, message=text)]
    request = DeleteShareGroupOffsetsRequest(name, [DeleteShareGroupOffsetsRequestTopic(each.name) for each in topics])
    answer = cluster.ask_coordinator(name, request, DeleteShareGroupOffsetsResponse, lambda each: each.error_code)
    if answer.error_code:
        return [_failure(name, answer.error_code, "group", answer.error_message)]
    return [
        Failure(name, each.error_code, each.topic_name, each.error_message)
        for each in answer.responses
        if each.error_code
    ]


def _one_by_one(names: Sequence[str], ask: Callable[[str], list[Failure]]) -> list[Failure]:
    """Return the failures of all groups.

    After a group without an answer, do not send the requests of further groups.
    """
    failures: list[Failure] = []
    for number, name in enumerate(names):
        try:
            failures += ask(name)
        except Unanswered as error:
            return failures + [Failure(each, error.code, message=str(error)) for each in names[number:]]
    return failures


_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)


def _failure(name: str, code: int, kind: str, message: str | None = None) -> Failure:
    missing = code in _MISSING
    return Failure(name, code, name if missing else "", message, kind if missing else "")


TOPIC_DELETE: Final = Change(
    "topic",
    "delete",
    "Delete topic",
    "Delete topics with all their records.",
    "DELETE /topics/{topic}",
    _delete_topics,
    doing="delete {topic}",
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
    doing="delete {group}",
    done="deleted {group}",
    warning="The committed offsets are deleted with the group. Its consumers then start where auto.offset.reset says.",
    deletes=True,
)
GROUP_DELETE_OFFSETS: Final = Change(
    "group",
    "delete-offsets",
    "Delete offsets",
    "Delete committed offsets of topics that no member reads, or start offsets of a share group without members.",
    "POST /delete-offsets/{group}",
    _delete_offsets,
    doing="delete the offsets of {topic} in {group}",
    done="deleted the offsets of {topic} in {group}",
    warning="Its offsets of the topic are deleted. Its consumers then start where auto.offset.reset says; in a share "
    "group where share.auto.offset.reset says.",
    fields=(Field("topic", "names", "A topic, or some of its partitions.", required=True, form="TOPIC[:P,...]"),),
)
CHANGES: Final = (TOPIC_DELETE, GROUP_DELETE_OFFSETS, GROUP_DELETE)
