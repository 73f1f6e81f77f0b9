"""The views of this broker: each is a filter on a partition of which this broker has a replica.

Owns the scans of the sources, the compiled filters, and the filtered batches that are kept in memory. Follows the
cluster's state: a new filter of a view, or the loss of its source, takes effect immediately. A stored filter that
cannot be compiled is an error, and never selects all records. Never answers a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kbroker.clock import Clock
from kbroker.cluster_state import VIEW_FILTER, ClusterState, TopicState
from kbroker.filters.filtering import Filter, compile_filter
from kbroker.filters.tokens import FilterError
from kbroker.long_work import FewAtOnce
from kbroker.partition import MOST_CLIENTS, Client, Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.topic_metrics import TopicMetrics, Traffic
from kbroker.views.header_indexes import HeaderIndexes
from kbroker.views.scanned import Selection
from kbroker.views.shared import Shared
from kbroker.views.source_scan import SourceScan

log = logging.getLogger(__name__)

_MOST_FILTERS: Final = 10_000


class HostedView(NamedTuple):
    """One partition of a view."""

    topic: str
    partition: Partition
    """The source's partition."""
    scan: SourceScan
    selection: Selection
    traffic: Traffic


class HostedViews:
    """All views whose sources have a replica on this broker."""

    def __init__(
        self,
        get: Callable[[tuple[str, int]], Partition | None],
        why_missing: Callable[[str, int], ErrorCode],
        clock: Clock,
        state: Callable[[], ClusterState],
        openings: FewAtOnce[Any],
        counters: TopicMetrics,
        hosted: Callable[[], Iterable[Partition]],
    ) -> None:
        """`get` returns one hosted partition, and `hosted` returns all of them.

        `why_missing` returns the error for a partition that is not hosted.
        """
        self._counters = counters
        self._get = get
        self._why_missing = why_missing
        self._state = state
        self.shared: Final = Shared(clock, openings, self.is_hosted, HeaderIndexes(clock, hosted))
        self._scans: dict[Partition, SourceScan] = {}
        self._filters: dict[str, Filter] = {}
        self.traffic: dict[str, Traffic] = {}
        """The traffic of each view that was read."""
        self._fetched: dict[tuple[str, int], dict[Client, int]] = {}

    def topic(self, name: str) -> TopicState | None:
        """Return the state of a view; None if the topic is not a view or does not exist."""
        topic = self._state().topics.get(name)
        return topic if topic is not None and topic.source is not None else None

    def has_id(self, topic_id: bytes) -> bool:
        """Whether the topic with this id is a view."""
        return self.topic(self._state().topic_names.get(topic_id, "")) is not None

    def filters_for_share(self, name: str, group_filter: str) -> list[Filter]:
        """Return the filters that select a share group's records of a topic. Raises ApiError.

        `group_filter` is the group's share.filter; empty for none.
        """
        topic = self.topic(name)
        found = [] if topic is None else [self._compiled(name, topic.configs.get(VIEW_FILTER, ""))]
        return [*found, self._compiled("a share group", group_filter)] if group_filter else found

    def find(self, name: str, index: int) -> HostedView | None:
        """Return a view's partition; None if the topic is not a view. Raises ApiError if it cannot be read here."""
        topic = self.topic(name)
        if topic is None or topic.source is None:
            return None
        if not 0 <= index < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = self._get((topic.source, index))
        if partition is None:
            raise ApiError(self._why_missing(topic.source, index))
        wanted = self._compiled(name, topic.configs.get(VIEW_FILTER, ""))
        scan = self.scan_of(partition)
        traffic = self.traffic.get(name)
        if traffic is None:
            traffic = self.traffic[name] = self._counters.host(name)
        return HostedView(name, partition, scan, scan.use(wanted), traffic)

    def known_end(self, name: str, index: int) -> int | None:
        """Return the end of a view's partition if the end is known, without a search."""
        topic = self.topic(name)
        partition = None if topic is None else self._get((topic.source or "", index))
        scan = None if partition is None else self._scans.get(partition)
        if topic is None or scan is None:
            return None
        selection = scan.selections.get(topic.configs.get(VIEW_FILTER, ""))
        if selection is None or not scan.knows_end(selection):
            return None
        return selection.high_watermark(scan.log.log_start_offset)

    def scan_of(self, partition: Partition) -> SourceScan:
        """Return the scan of a hosted partition."""
        scan = self._scans.get(partition)
        if scan is None or not scan.is_current:
            old, scan = scan, SourceScan(partition, self.shared)
            self._scans[partition] = scan
            if old is not None:
                old.close()
        return scan

    def is_hosted(self, partition: Partition) -> bool:
        """Whether a partition is hosted here."""
        return self._get(partition.key) is partition

    def _compiled(self, owner: str, text: str) -> Filter:
        found = self._filters.get(text)
        if found is None:
            try:
                found = compile_filter(text)
            except FilterError as error:
                log.error("%s gets no records, because its filter cannot be read: %s", owner, error)
                raise ApiError(ErrorCode.INVALID_CONFIG, f"the filter of {owner} cannot be read") from error
            if len(self._filters) >= _MOST_FILTERS:
                self._filters.clear()
            self._filters[text] = found
        return found

    def note_fetch(self, name: str, index: int, client: Client, offset: int) -> None:
        """Record that a client got records of a view's partition from an offset on."""
        fetched = self._fetched.setdefault((name, index), {})
        if len(fetched) < MOST_CLIENTS or client in fetched:
            fetched[client] = offset

    def take_fetched(self) -> dict[tuple[str, int], dict[Client, int]]:
        """Return the last offset from which each client got records since the last call, by partition."""
        taken, self._fetched = self._fetched, {}
        return taken

    @property
    def scans(self) -> list[SourceScan]:
        """The scans of sources."""
        return list(self._scans.values())

    def follow(self, old: ClusterState, new: ClusterState) -> None:
        """Forget the data of removed views, replaced filters and removed partitions, and notify their readers."""
        if old.topics is new.topics or not (old.views or new.views):
            return
        for name in [name for name in self.traffic if name not in new.topics]:
            del self.traffic[name]
            self._counters.unhost(name)
        for partition, scan in list(self._scans.items()):
            if not self.is_hosted(partition):
                del self._scans[partition]
                scan.close()
                continue
            views = new.views.get(partition.topic, frozenset())
            if views == old.views.get(partition.topic) and all(
                old.topics[v].configs is new.topics[v].configs for v in views
            ):
                continue
            texts = {new.topics[view].configs.get(VIEW_FILTER, "") for view in views}
            for text in [text for text in scan.selections if text not in texts]:
                scan.drop(text)
            scan.wake_all()

    def tick(self) -> None:
        """Begin periodic work, if it is due."""
        self.shared.indexes.tick()

    def close(self) -> None:
        """End all scans."""
        for scan in self.scans:
            scan.close()
        self._scans.clear()
        self.shared.indexes.close()
