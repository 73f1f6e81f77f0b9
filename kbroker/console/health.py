"""The faults of a cluster, worst first, each with the page that helps to fix it.

Owns the definition of a fault. Judges the sampler's results; never sends a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kbroker.admin.cluster_view import INTERNAL, ClusterView
from kbroker.console.listing import place
from kbroker.console.number_text import duration, moment, number, plural
from kbroker.console.sampler import Samples
from kbroker.console.stuck_groups import STANDING_S

GROWING_S: Final = 120.0
"""The seconds for which a group's lag must grow before the group counts as falling behind."""
UNSETTLED_S: Final = 60.0
"""The seconds of rebalancing after which a group is reported: more than clients' default session timeout of 45 s."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: `bad` if records cannot be written or read, else `warn`."""

    level: str
    title: str
    detail: str
    href: str
    remedy: str


def findings(samples: Samples) -> list[Finding]:
    """Return the faults, worst first; causes (such as a missing broker) precede their effects."""
    view = samples.view
    if view is None:
        return []
    found = [*_of_brokers(view, samples), *_of_partitions(view, samples), *_of_clients(samples)]
    return sorted(found, key=lambda each: each.level != "bad")


def _of_partitions(view: ClusterView, samples: Samples) -> Iterator[Finding]:
    offline = [(topic.name, topic.offline) for topic in view.topics.values() if topic.offline]
    if offline:
        yield Finding(
            "bad",
            plural(sum(count for _, count in offline), "partition nobody leads", "partitions nobody leads"),
            f"Clients can neither produce to them nor fetch from them. {_named([name for name, _ in offline])}",
            _topics("offline", [name for name, _ in offline]),
            "See the topics. Start a broker with an in-sync replica; only if none returns, elect another replica by an "
            "unclean election",
        )
    below = sorted(samples.under_min_isr)
    if below:
        yield Finding(
            "bad",
            plural(len(below), "partition below min.insync.replicas", "partitions below min.insync.replicas"),
            f"Producers with acks=all are refused. {_named([name for name, _ in below])}",
            _topics("min-isr", [name for name, _ in below]),
            "See the topics. Start the missing brokers",
        )
    under = [topic for topic in view.topics.values() if topic.under_replicated]
    if under:
        yield Finding(
            "warn",
            plural(
                sum(topic.under_replicated for topic in under),
                "under-replicated partition",
                "under-replicated partitions",
            ),
            f"Some replicas have not caught up with their leader. {_named([topic.name for topic in under])}",
            _topics("under", [topic.name for topic in under]),
            "See the topics. A broker is missing, or too slow",
        )


def can_move(view: ClusterView, broker: int) -> bool:
    """Whether enough brokers are alive for the replicas of each partition of a missing broker."""
    return all(len(p.replica_nodes) <= len(view.brokers) for _, p in view.partitions() if broker in p.replica_nodes)


def _of_brokers(view: ClusterView, samples: Samples) -> Iterator[Finding]:
    if view.controller < 0:
        yield Finding(
            "bad", "No controller", "No broker elects leaders or changes topics.", place("/cluster"), "See the brokers"
        )
    for broker, count in view.missing_brokers().items():
        yield Finding(
            "warn",
            f"Broker {broker} is gone",
            f"It has {plural(count, 'replica')}.",
            place("/cluster"),
            "Start it. Only if it never returns, move its replicas to others"
            if can_move(view, broker)
            else "Start it: fewer brokers are left than some of its partitions have replicas",
        )
    for each in samples.dirs:
        if each.error is not None:
            yield Finding(
                "bad",
                f"A log directory of broker {each.broker} is offline",
                f"{each.path}: {each.error}",
                place("/cluster"),
                "See the log directories",
            )


def _of_clients(samples: Samples) -> Iterator[Finding]:
    groups, hang, unsettled, stuck = samples.groups, samples.hanging, samples.unsettled, samples.stuck
    for name in sorted(groups):
        lag, still = samples.lags.get(name), samples.standing.of(name, STANDING_S)
        if name in stuck:
            record, rest = stuck[name][0], len(stuck[name]) - 1
            more = f"; nor past records in {plural(rest, 'other partition')}" if rest else ""
            yield Finding(
                "bad",
                f"Group {name} does not get past a record",
                f"It has stood at offset {record.offset} of {record.topic}-{record.partition} since "
                f"{moment(record.since_ms)}, although members have read that record{more}. "
                f"Its lag is {number(lag.last)}.",
                place("/group", name=name),
                "See the record",
            )
        elif unsettled.get(name, 0.0) >= UNSETTLED_S:
            yield Finding(
                "warn",
                f"Group {name} does not settle",
                f"Its assignment has changed repeatedly for {duration(unsettled[name])}; its state is {groups[name]}. "
                "The coordinator waits for a member until it rejoins or its session expires: a crashed member, or one "
                "that still processes records.",
                place("/group", name=name),
                "See its members",
            )
        elif still:
            (topic, partition), stop = max(still.items(), key=lambda each: each[1].lasted_s)
            others = f"; nor in {plural(len(still) - 1, 'other partition')}" if len(still) > 1 else ""
            yield Finding(
                "warn",
                f"Group {name} stands still",
                f"For {duration(stop.lasted_s)} it has not committed beyond offset {stop.offset} of "
                f"{topic}-{partition}, although there are new records{others}. Its lag is {number(lag.last)}.",
                place("/group", name=name),
                "Look for the partition's member, for the record at this offset, or for an open transaction",
            )
        elif lag.grows(GROWING_S) and groups[name] == "Empty":
            yield Finding(
                "warn",
                f"Group {name} has no members",
                f"Its lag grows and is {number(lag.last)} now. "
                "A consumer with manually assigned partitions is not a member.",
                place("/group", name=name),
                "Start its consumers",
            )
        elif lag.grows(GROWING_S):
            yield Finding(
                "warn",
                f"Group {name} falls behind",
                f"Its lag only grows and is {number(lag.last)} now. State: {groups[name] or 'not known'}.",
                place("/group", name=name),
                "See its members",
            )
    if hang:
        first = hang[0]
        yield Finding(
            "bad",
            plural(len(hang), "hanging transaction"),
            f"Consumers with isolation.level=read_committed wait at {first.topic}-{first.partition}, "
            f"offset {first.producer.current_txn_start_offset}.",
            place("/transactions", look="hanging"),
            "Abort it",
        )


def _topics(health: str, names: list[str]) -> str:
    """Return the address of the list of topics with a problem.

    The list includes internal topics only if one of them has the problem.
    """
    return place("/topics", health=health, internal="1" if INTERNAL.intersection(names) else None)


def _named(of_partitions: list[str]) -> str:
    """Return a text with the topics' names, without duplicates; internal topics come last."""
    names = sorted(dict.fromkeys(of_partitions), key=lambda name: name in INTERNAL)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"Topic{'s' if len(names) > 1 else ''}: {', '.join(names[:_NAMED])}{more}."
