"""What goes in and out of topics on this broker, in integers that only grow.

Owns the numbers, one object for all partitions of a topic here, and what topics that are gone have left to the sums.
Whoever serves adds to them; nobody reads them unless metrics are asked for. Never asks what time it is: rates are for
who reads.

What counts is what counts in Kafka (BrokerTopicStats): what was appended as leader, by clients and by coordinators, and
what leaves in answers to fetches. A batch that comes again and stands there already counts as a batch with its bytes,
but its records, unlike Kafka's, do not.
"""

from __future__ import annotations

from collections import Counter

from kbroker.protocol.errors import ApiError, ErrorCode

_USUAL = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""Why Kafka refuses a batch without counting it as failed. KAFKA_STORAGE_ERROR is one there, where the directory is
offline by then and counted so; here it may be a full disk, with which a broker goes on."""


class Traffic:
    """A topic's numbers, or all topics' sums."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "hosted",
        "messages_in",
        "produces",
        "replicated_in",
        "replicated_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        """Up to when it was last asked for: a log's end tells how many there were since (Partition.count)."""
        self.bytes_in = 0
        self.produces = 0
        """Batches that were to be appended, whether they were or not."""
        self.failed_produces = 0
        """Those that were not, for a reason that is none of Kafka's usual ones."""
        self.bytes_out = 0
        """What consumers were sent; tools that compare replicas are among them."""
        self.fetches = 0
        """Partitions that were read for whoever asked, each time anew."""
        self.failed_fetches = 0
        self.replicated_in = 0
        self.replicated_out = 0
        """Bytes, from leaders and to followers."""
        self.hosted = 0
        """Partitions of the topic here."""

    def refused(self, error: Exception) -> None:
        """Count what was to be appended and was not."""
        self.produces += 1
        if not isinstance(error, ApiError) or error.code not in _USUAL:
            self.failed_produces += 1

    def add(self, other: Traffic) -> None:
        """Add another's numbers to these."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTED = tuple(name for name in Traffic.__slots__ if name != "hosted")


class TopicMetrics:
    """The numbers of all topics that have a partition here."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Traffic] = {}
        self._gone = Traffic()
        self.follower_fetches: Counter[int] = Counter()
        """Fetches of other brokers, by version."""
        self.delayed_fetches = 0
        self.delayed_produces = 0
        """Requests that wait now: for records, and for other replicas."""

    def hosts(self, topic: str) -> Traffic:
        """Return a topic's numbers, to which one more partition here adds from now on."""
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = Traffic()
        found.hosted += 1
        return found

    def hosts_no_more(self, topic: str) -> None:
        """Let a topic go with its last partition here; what it added to the sums stays."""
        found = self._by_topic.get(topic)
        if found is None:
            return
        found.hosted -= 1
        if not found.hosted:
            del self._by_topic[topic]
            self._gone.add(found)

    def now(self) -> tuple[list[tuple[str, Traffic]], Traffic]:
        """Return the topics that there are, and what those that are gone have left: each number is in one of the two.

        They may be read later, in pieces: what is in the list is added to meanwhile, and counts once all the same.
        """
        gone = Traffic()
        gone.add(self._gone)
        return list(self._by_topic.items()), gone
