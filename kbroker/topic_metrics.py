"""The traffic of topics on this broker, in integers that only grow.

Owns the counters (one object for all partitions of a topic on this broker), and the sums of topics that have left this
broker. The code that serves requests increases the counters; only metrics read the counters. Never reads a clock: the
reader computes rates.

The same events count as in Kafka (BrokerTopicStats): records that a leader appends for clients and coordinators, and
bytes sent in fetch responses. A duplicate batch that is already in the log counts as a batch, and its bytes count. Its
records do not count, unlike in Kafka.
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
"""The errors with which Kafka refuses a batch without counting it as failed.

In Kafka, KAFKA_STORAGE_ERROR is one of these errors: the directory goes offline, and counts as offline. In kbroker, the
cause may be a full disk, and the broker then continues. So the batch counts as failed.
"""


class Traffic:
    """The counters of a topic, or the sums of all topics."""

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
        """The number of records up to the last query.

        The log's end offset shows the number since then (Partition.count).
        """
        self.bytes_in = 0
        self.produces = 0
        """The number of batches to append, including refused batches."""
        self.failed_produces = 0
        """The number of refused batches. Batches that were refused with one of Kafka's usual errors are not counted."""
        self.bytes_out = 0
        """The number of bytes sent to consumers, including tools that compare replicas."""
        self.fetches = 0
        """The number of reads of a partition for fetch requests; each attempt counts."""
        self.failed_fetches = 0
        self.replicated_in = 0
        self.replicated_out = 0
        """The number of replicated bytes: `replicated_in` from leaders, `replicated_out` to followers."""
        self.hosted = 0
        """The number of the topic's partitions on this broker."""

    def refused(self, error: Exception) -> None:
        """Count a batch that was refused."""
        self.produces += 1
        if not isinstance(error, ApiError) or error.code not in _USUAL:
            self.failed_produces += 1

    def add(self, other: Traffic) -> None:
        """Add the counters of another Traffic."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTED = tuple(name for name in Traffic.__slots__ if name != "hosted")


class TopicMetrics:
    """The counters of all topics that have a partition on this broker."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Traffic] = {}
        self._removed = Traffic()
        self.follower_fetches: Counter[int] = Counter()
        """The number of fetches by other brokers, by version."""
        self.delayed_fetches = 0
        self.delayed_produces = 0
        """The number of requests that wait now: fetches wait for records, produces wait for other replicas."""

    def host(self, topic: str) -> Traffic:
        """Return a topic's counters, and increase its number of hosted partitions by one."""
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = Traffic()
        found.hosted += 1
        return found

    def unhost(self, topic: str) -> None:
        """Drop a topic when its last partition leaves this broker; the sums keep its counters."""
        found = self._by_topic.get(topic)
        if found is None:
            return
        found.hosted -= 1
        if not found.hosted:
            del self._by_topic[topic]
            self._removed.add(found)

    def now(self) -> tuple[list[tuple[str, Traffic]], Traffic]:
        """Return the topics on this broker, and the sums of topics that have left it.

        Each count is in only one of the two. The caller may read the result later, in pieces: the listed counters
        increase meanwhile, but no sum contains them.
        """
        removed = Traffic()
        removed.add(self._removed)
        return list(self._by_topic.items()), removed
