"""Samples taken every few seconds, even without visitors: throughput, lag, sizes, health.

Owns a thread with its own client, and the limit on the share of time that this thread spends on requests. The limit is
a twentieth, so that a large cluster gets fewer requests. While brokers are missing, the limit is a third, because the
thread mostly waits for these brokers. Keeps only the latest samples, in memory. Never fails: the pages show its errors.

kafka-python learns of brokers only from its own Metadata request, every five minutes, so it may not know a broker that
has returned. Therefore the sampler creates a new client when it finds a live broker that was not alive during the
complete lifetime of the old client.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kafka.errors import KafkaError

from kbroker.admin.cluster_view import ClusterView, cluster_view
from kbroker.admin.configs import topic_config
from kbroker.admin.connection import Connection, in_words
from kbroker.admin.errors import AdminError
from kbroker.admin.group_offsets import WITHOUT_MEMBERS
from kbroker.admin.groups import group_of
from kbroker.admin.log_dirs import LogDir, log_dirs, sizes_of_leaders
from kbroker.admin.partition_offsets import known_offsets_at
from kbroker.admin.placement import Key
from kbroker.admin.share_groups import share_offsets
from kbroker.admin.stuck_records import StuckRecord, stuck_records
from kbroker.admin.transactions import Open, hanging
from kbroker.console.asking import patient
from kbroker.console.series import Family, Series
from kbroker.console.stuck_groups import STANDING_S, StandingStill, Unsettled

PERIOD_S: Final = 5.0
_SHARE: Final = 0.05
"""The maximum duration of a round, as a share of the pause that follows the round."""
_SHARE_WITHOUT_ALL: Final = 0.5
"""The maximum duration of a round while brokers are missing, as a share of the pause that follows the round."""
_SOON_S: Final = 1.0
_MOST_PARTITIONS: Final = 20_000
_MOST_TOPICS: Final = 2_000
_MOST_GROUPS: Final = 500
_MOST_JUDGED: Final = 1_000
"""One round requests min.insync.replicas of at most this number of topics that are not fully in sync."""
_JUDGED_FOR_S: Final = 60.0
_MOST_STOPS: Final = 20_000
_GROUPS_AT_ONCE: Final = 100
_SUSPECTS_AT_ONCE: Final = 20
"""The maximum number of groups that one round checks again because they seem to make no progress."""
_DIRS_EVERY_S: Final = 30.0
_HANGING_EVERY_S: Final = 60.0
_HANGING_PARTITIONS: Final = 2_000
HANGING_MS: Final = 15 * 60_000
"""A transaction without a record for this time counts as hanging: Kafka's default transaction.max.timeout.ms."""
_LATEST: Final = -1
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Samples:
    """The samples. The sampler replaces the value of a field and never changes it, so a page may read at any time."""

    view: ClusterView | None = None
    failure: str | None = "the cluster has not answered yet"
    ends: dict[Key, int] = field(default_factory=dict)
    ends_at: float = 0.0
    total: Series = field(default_factory=Series)
    """Records per second of the whole cluster."""
    topics: Family = field(default_factory=lambda: Family(_MOST_TOPICS))
    """Records per second by topic."""
    lags: Family = field(default_factory=lambda: Family(_MOST_GROUPS))
    """The lags of groups, in records."""
    standing: StandingStill = field(default_factory=lambda: StandingStill(_MOST_STOPS))
    """Partitions in which groups make no progress."""
    groups: dict[str, str] = field(default_factory=dict)
    """States of groups by name."""
    readers: dict[str, set[str]] = field(default_factory=dict)
    """The topics for which groups have committed offsets."""
    dirs: list[LogDir] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    hanging: list[Open] = field(default_factory=list)
    under_min_isr: set[Key] = field(default_factory=set)
    unsettled: dict[str, float] = field(default_factory=dict)
    """The seconds for which each group has kept rebalancing, by group."""
    stuck: dict[str, list[StuckRecord]] = field(default_factory=dict)
    """The records that groups do not get past, by group."""
    rounds: int = 0
    looked_at: float = 0.0
    """The end of the last successful round, in seconds since 1970."""
    left_out: int = 0
    """The number of partitions that are beyond the limit and so are not sampled."""


class Sampler:
    """Samples a cluster until `stop`, also as a context manager."""

    def __init__(self, connection: Connection, period_s: float = PERIOD_S) -> None:
        self._connection = patient(connection)
        self._period_s = period_s
        self._over = threading.Event()
        self._wanted = threading.Event()
        self._looked = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kbroker-console-sampler", daemon=True)
        self._client: Any = None
        self._alive: frozenset[int] = frozenset()
        """The brokers that have been alive since the client was created."""
        self._dirs_at = self._hanging_at = -1e9
        self._next_group = 0
        self._unsettled = Unsettled()
        self._min_isr: dict[str, tuple[str, float]] = {}
        """The value of min.insync.replicas by topic, and the time of its request."""
        self.samples = Samples()

    def start(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop sampling; wait for the running request."""
        self._over.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(20)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def look_again(self) -> None:
        """Start the next round immediately, because something was changed."""
        self._dirs_at = -1e9
        self._wanted.set()

    def wait_for_rounds(self, count: int, patience_s: float) -> bool:
        """Wait until `count` rounds are done; for tests and screenshots."""
        with self._looked:
            return self._looked.wait_for(lambda: self.samples.rounds >= count, patience_s)

    def _run(self) -> None:
        while not self._over.is_set():
            begun, others = time.monotonic(), False
            try:
                self.round(self._admin())
                self.samples.looked_at = time.time()
                self.samples.failure = None
                others = self._others_live()
            except (AdminError, KafkaError) as error:
                self._lost(in_words(error, self._connection) if isinstance(error, KafkaError) else str(error))
            except Exception:
                log.exception("the request to the cluster failed")
                self._lost("the request to the cluster failed; the log has the reason")
            with self._looked:
                self.samples.rounds += 1
                self._looked.notify_all()
            soon = others or self.samples.failure is not None
            self._wanted.wait(_SOON_S if soon else self._pause_s(time.monotonic() - begun))
            self._wanted.clear()
        self._close()

    def _pause_s(self, took: float) -> float:
        """Return the seconds to pause after a round that took `took` seconds."""
        view = self.samples.view
        missing = view is not None and view.missing_brokers()
        return max(self._period_s - took, took / (_SHARE_WITHOUT_ALL if missing else _SHARE))

    def _others_live(self) -> bool:
        """Discard the client if it cannot know all live brokers; return whether it was discarded."""
        view, before = self.samples.view, self._alive
        now = frozenset() if view is None else frozenset(each.node_id for each in view.brokers)
        before = before or now
        self._alive = before & now  # the client also forgets brokers that are missing
        if now <= before:
            return False
        self._close()
        self._dirs_at = -1e9
        return True

    def _admin(self) -> Any:
        if self._client is None:
            self._alive = frozenset()
            self._client = self._connection.open_admin()
        return self._client

    def _lost(self, why: str) -> None:
        self.samples.failure = why
        self._close()

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def round(self, admin: Any) -> None:
        """Take one round of samples. Raises AdminError and KafkaError."""
        samples, now = self.samples, time.monotonic()
        view = cluster_view(admin)
        samples.view = view
        leaders = view.leaders()
        led = dict(list(leaders.items())[:_MOST_PARTITIONS])
        samples.left_out = len(leaders) - len(led)
        ends, at = known_offsets_at(admin, led, _LATEST), time.time()
        self._count(samples, ends, at)
        samples.topics.keep(view.topics)
        samples.under_min_isr = self._under_min_isr(admin, view, now)
        self._lag(admin, samples, at)
        samples.stuck = _by_group(stuck_records(admin)) if samples.groups else {}
        if now - self._dirs_at > _DIRS_EVERY_S:
            self._dirs_at = now
            samples.dirs = log_dirs(admin, [each.node_id for each in view.brokers])
            samples.sizes = sizes_of_leaders(samples.dirs, leaders)
        if now - self._hanging_at > _HANGING_EVERY_S and len(leaders) <= _HANGING_PARTITIONS:
            self._hanging_at = now
            with contextlib.suppress(AdminError, KafkaError):  # Apache Kafka before 3.0 lacks this API
                samples.hanging = hanging(admin, leaders, HANGING_MS)
        elif samples.hanging:  # check these transactions again, because an operator may have aborted some
            found = {(each.topic, each.partition) for each in samples.hanging}
            with contextlib.suppress(AdminError, KafkaError):
                samples.hanging = hanging(admin, {key: leaders[key] for key in found & leaders.keys()}, HANGING_MS)

    @staticmethod
    def _count(samples: Samples, ends: dict[Key, int], at: float) -> None:
        """Convert offsets into records per second since the last round."""
        before, passed = samples.ends, at - samples.ends_at
        samples.ends, samples.ends_at = ends, at
        if not before or passed <= 0:
            return
        rates: dict[str, float] = {}
        for key, end in ends.items():
            grown = max(end - before.get(key, end), 0)
            rates[key[0]] = rates.get(key[0], 0.0) + grown / passed
        samples.total.add(at, sum(rates.values()))
        busy_first = sorted(rates.items(), key=lambda each: each[1])[-_MOST_TOPICS:]
        for name, rate in busy_first:
            samples.topics.add(name, at, rate)

    def _under_min_isr(self, admin: Any, view: ClusterView, now: float) -> set[Key]:
        """Return partitions with too few in-sync replicas for acks=all, in topics that are not fully in sync."""
        names = [topic.name for topic in view.topics.values() if topic.under_replicated]
        below = {name for name, _ in self.samples.under_min_isr}  # request the value again, because it may have changed
        known = {
            name: value
            for name in names
            if name not in below and (value := self._min_isr.get(name)) is not None and now - value[1] < _JUDGED_FOR_S
        }
        unknown = [name for name in names if name not in known]
        unknown.sort(key=lambda name: name not in below)
        found = topic_config(admin, unknown[:_MOST_JUDGED], "min.insync.replicas") if unknown else {}
        known.update({name: (text, now) for name, text in found.items()})
        self._min_isr = known
        return {
            (name, each.partition_index)
            for name, (text, _) in known.items()
            for each in view.topics[name].partitions
            if text.isdecimal() and len(each.isr_nodes) < int(text)
        }

    def _lag(self, admin: Any, samples: Samples, at: float) -> None:
        """Update the lags of groups; each round updates some groups."""
        found = admin.list_groups()
        samples.groups = {str(each["group_id"]): str(each.get("group_state") or "") for each in found}
        now = time.monotonic()
        samples.unsettled = self._unsettled.update(samples.groups, now)
        samples.lags.keep(samples.groups)
        # A group without members, or in an unknown state, is not reported as stuck.
        reading = {name for name, state in samples.groups.items() if state not in ("", *WITHOUT_MEMBERS)}
        samples.standing.keep(reading)
        names = sorted(samples.groups)
        if not names:
            return
        first = self._next_group % len(names)
        chosen = (names[first:] + names[:first])[:_GROUPS_AT_ONCE]
        self._next_group = first + len(chosen)
        suspects = [name for name in names if samples.standing.of(name, STANDING_S)][:_SUSPECTS_AT_ONCE]
        chosen = list(dict.fromkeys(suspects + chosen))
        readers = {name: topics for name, topics in samples.readers.items() if name in samples.groups}
        shares = {str(each["group_id"]) for each in found if str(each.get("group_type")).lower() == "share"}
        offsets = _committed(admin, [name for name in chosen if name not in shares])
        for name, lags in _share_lags(admin, [name for name in chosen if name in shares]).items():
            samples.lags.add(name, at, sum(lags.values()))
            readers[name] = {topic for topic, _ in lags}
        for name in reading.intersection(chosen) - offsets.keys():
            samples.standing.forget(name)
        for name, committed in offsets.items():
            samples.lags.add(name, at, lag_of(committed, samples.ends))
            readers[name] = {topic for topic, _ in committed}
            if name in reading:
                if samples.standing.suspects(name, committed, now, STANDING_S / 2):
                    committed = _assigned(admin, name, committed)
                samples.standing.update(name, committed, samples.ends, now)
        samples.readers = readers


def _by_group(records: Iterable[StuckRecord]) -> dict[str, list[StuckRecord]]:
    found: dict[str, list[StuckRecord]] = {}
    for each in records:
        found.setdefault(each.group, []).append(each)
    return found


def _committed(admin: Any, names: Iterable[str]) -> dict[str, dict[Key, int]]:
    """Return the committed offsets of groups; groups without an answer are left out."""
    found: dict[str, dict[Key, int]] = {}
    for name in names:
        with contextlib.suppress(KafkaError, AdminError):
            answer = admin.list_group_offsets({name: None})[name]
            found[name] = {(p.topic, p.partition): at.offset for p, at in answer.items() if at.offset >= 0}
    return found


def _share_lags(admin: Any, names: Iterable[str]) -> dict[str, dict[Key, int]]:
    """Return the known lags of share groups' partitions; groups without an answer are left out."""
    found: dict[str, dict[Key, int]] = {}
    for name in names:
        with contextlib.suppress(KafkaError, AdminError):
            offsets = share_offsets(admin, name)
            found[name] = {(p.topic, p.partition): at.lag for p, at in offsets.items() if at.lag is not None}
    return found


def _assigned(admin: Any, name: str, committed: dict[Key, int]) -> dict[Key, int]:
    """Return a group's committed offsets of its assigned partitions.

    Other partitions are omitted, because the group may no longer read them.
    """
    try:
        group = group_of(admin, name)
    except (KafkaError, AdminError):
        return committed
    except Exception:  # clients encode the assignments, so an assignment may be invalid
        log.exception("the assignments of group %s cannot be read", name)
        return committed
    members = (group["members"] if group is not None else None) or ()
    assigned = {(p["topic"], p["partition"]) for member in members for p in member["partitions"]}
    return {key: offset for key, offset in committed.items() if key in assigned} if assigned else committed


def lag_of(committed: Mapping[Key, int], ends: Mapping[Key, int]) -> int:
    """Return the number of records between the committed offsets and the known ends."""
    return sum(max(ends[key] - offset, 0) for key, offset in committed.items() if key in ends)
