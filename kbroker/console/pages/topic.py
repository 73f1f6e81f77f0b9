"""A topic: its partitions with their replicas, sizes and offsets, its tiers, its configs, and changes of the topic.

Owns these requests and changes, the wait until changed configs are visible, and the time for which a page waits for the
tiers. Never asks for the tiers of a topic without remote storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kbroker.admin.cluster_view import TopicView, is_misled, view_with
from kbroker.admin.configs import Subject, alter_configs, described_configs
from kbroker.admin.connection import patience
from kbroker.admin.errors import AdminError, NotThere, raise_any
from kbroker.admin.log_dirs import log_dirs
from kbroker.admin.partition_offsets import known_offsets_at
from kbroker.admin.placement import elect_leaders, leaders
from kbroker.admin.records import TO_THE_END, delete_records
from kbroker.admin.schedules import ENABLE as HAS_SCHEDULES
from kbroker.admin.topic_tiers import ENABLE as HAS_TIERS
from kbroker.admin.topic_tiers import Tiers, topic_tiers
from kbroker.admin.topics import add_partitions
from kbroker.config.operations import Op
from kbroker.console.asking import Busy, Slow
from kbroker.console.configs_shown import Row, rows_of
from kbroker.console.console import Console
from kbroker.console.listing import Listing, place
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.tiers_shown import TiersShown
from kbroker.console.values import Values
from kbroker.protocol.messages.configs import IncrementalConfig
from kbroker.protocol.wire import uuid_text

_EARLIEST: Final = -2
_LATEST: Final = -1
_PER_PAGE: Final = 100
_MOST_SECONDS: Final = 3.0
"""The seconds after which a page no longer reads remote segments, and for which it waits for a leader."""
_TIERS_DEADLINE_S: Final = 8.0
"""The seconds after which a page is shown without the tiers."""


def _looked(admin: Any, name: str) -> Facts:
    view = view_with(admin, name)
    topic = view.topics.get(name)
    if topic is None:
        raise NotThere(f"there is no topic {name}")
    led = view.leaders([name])
    begins, ends = known_offsets_at(admin, led, _EARLIEST), known_offsets_at(admin, led, _LATEST)
    sizes: dict[tuple[int, int], int] = {}
    for each in log_dirs(admin, [broker.node_id for broker in view.brokers], [name]):
        sizes.update({(key[1], each.broker): size for key, size in each.replicas.items()})
    parts = [
        {
            "index": p.partition_index,
            "leader": p.leader_id,
            "replicas": p.replica_nodes,
            "isr": set(p.isr_nodes),
            "begin": begins.get((name, p.partition_index)),
            "end": ends.get((name, p.partition_index)),
            "size": sizes.get((p.partition_index, p.leader_id)),
            "epoch": p.leader_epoch,
        }
        for p in topic.partitions
    ]
    configs = _configs(admin, name)
    view_facts = _view(configs)
    return {
        "topic": topic,
        "view": view_facts,
        "id": _id(topic),
        "parts": parts,
        "records": sum(ends[key] - begins[key] for key in ends if key in begins),
        "size": sum(size for (index, broker), size in sizes.items() if led.get((name, index)) == broker),
        "misled": sum(is_misled(p) for p in topic.partitions),
        "has_schedules": configs.get(HAS_SCHEDULES) == "true",
        "has_tiers": configs.get(HAS_TIERS) == "true" and view_facts is None,
    }


def view_shown(admin: Any, name: str) -> Facts | None:
    """Return a view's source and filter; None for other topics, for a broker without views, or after a refusal."""
    return _view(_configs(admin, name))


def _view(configs: Mapping[str, str | None]) -> Facts | None:
    source = configs.get("view.source")
    return {"source": source, "filter": configs.get("view.filter")} if source else None


def _configs(admin: Any, name: str) -> dict[str, str | None]:
    """Return the configs of a topic; none after a refusal."""
    try:
        found = described_configs(admin, Subject("topic", name), documentation=False)
    except AdminError:
        return {}
    return {each.name: each.value for each in found}


def _id(topic: TopicView) -> str | None:
    return uuid_text(topic.topic_id) if topic.topic_id and any(topic.topic_id) else None


async def find(console: Console, values: Values) -> Facts:
    """Return a topic with its partitions."""
    name = values.text("topic")
    facts = await console.ask(lambda admin: _looked(admin, name))
    path = place("/topics", name)
    tiers = await _tiers(console, name, [each["index"] for each in facts["parts"]]) if facts["has_tiers"] else None
    readers = [group for group, keys in console.sampler.samples.readers.items() if name in keys]
    return {
        **facts,
        "list": Listing(facts["parts"], values.page(), path, per_page=_PER_PAGE),
        "tiers": tiers,
        "tiers_list": None if tiers is None else Listing(tiers.rows, values.page(), path, per_page=_PER_PAGE),
        "below": sum(topic == name for topic, _ in console.sampler.samples.under_min_isr),
        "rate": console.sampler.samples.topics.get(name),
        "readers": sorted(readers),
        "lags": console.sampler.samples.lags,
        "tab": "partitions",
    }


async def _tiers(console: Console, name: str, partitions: Sequence[int]) -> TiersShown:
    """Return the tiers of a topic. A failure becomes a trouble."""

    def found(admin: Any) -> Tiers:
        with patience(_MOST_SECONDS):
            return topic_tiers(admin, [name], most_s=_MOST_SECONDS)

    try:
        tiers = await console.cluster.ask(found, deadline_s=_TIERS_DEADLINE_S)
    except (AdminError, Slow, Busy) as error:
        tiers = Tiers(troubles=[f"the tiers are unknown: {error}"])
    return TiersShown(name, partitions, tiers)


async def find_configs(console: Console, values: Values) -> Facts:
    """Return a topic with its configs."""
    name = values.text("topic")
    topic = await console.topic(name)
    subject = Subject("topic", name)
    found = await console.ask(lambda admin: described_configs(admin, subject, documentation=True))
    shown: list[Row] = rows_of(subject, found)
    text = values.text("q").lower()
    own = values.flag("own")
    return {
        "topic": topic,
        "rows": [each for each in shown if text in each.key and (each.own or not own)],
        "subject": subject,
        "q": text,
        "own": own,
        "tab": "configs",
    }


def set_config(admin: Any, values: Values) -> Done:
    """Set a config, or reset it to the inherited value."""
    name, key = values.needed("topic", "the topic"), values.needed("key", "the config")
    op = (
        IncrementalConfig(key, Op.DELETE, None)
        if values.flag("unset")
        else IncrementalConfig(key, Op.SET, values.text("value"))
    )
    alter_configs(admin, Subject("topic", name), [op], dry_run=False)
    outcome = "has the inherited value again" if values.flag("unset") else f"is {op.value}"
    return Done(f"{key} of {name} {outcome}.", place("/topics", name, "configs"))


def add(admin: Any, values: Values) -> Done:
    """Add partitions to a topic."""
    name = values.needed("topic", "the topic")
    count = values.needed_number("count", "the number of partitions", least=1)
    add_partitions(admin, name, count)
    return Done(f"{name} has {count} partitions.", place("/topics", name))


def truncate(admin: Any, values: Values) -> Done:
    """Delete the records before an offset, in one partition or in all partitions."""
    name = values.needed("topic", "the topic")
    partition = values.optional_number("partition", "the partition")
    before = values.optional_number("offset", "the offset")
    led = leaders(admin, name, partition)
    without = sorted(key[1] for key, leader in led.items() if leader < 0)
    if without:
        raise AdminError(f"partition {without[0]} has no leader")
    rows, failures = delete_records(admin, dict.fromkeys(led, TO_THE_END if before is None else before), led)
    raise_any(failures)
    where = ", ".join(f"{index} at {at}" for _, index, at in sorted(rows)[:5])
    return Done(f"Records of {name} are deleted: partition {where}.", place("/topics", name))


def elect(admin: Any, values: Values) -> Done:
    """Elect the preferred leaders of a topic."""
    name = values.needed("topic", "the topic")
    return _elected(name, elect_leaders(admin, [name], unclean=False))


def elect_unclean(admin: Any, values: Values) -> Done:
    """Elect any replica as leader where no in-sync replica is alive; records may be lost."""
    name = values.needed("topic", "the topic")
    return _elected(name, elect_leaders(admin, [name], unclean=True))


def _elected(name: str, found: tuple[list[tuple[str, int]], list[str]]) -> Done:
    changed, failures = found
    raise_any(failures)
    count = len(changed)
    outcome = "1 partition has" if count == 1 else f"{count} partitions have"
    return Done(f"{outcome} another leader.", place("/topics", name))


PAGES: Final = (
    Page("/topics/{topic}", "topic.html", find),
    Page("/topics/{topic}/configs", "topic_configs.html", find_configs),
)
ACTIONS: Final = (
    Action("topic-config", set_config),
    Action("topic-partitions", add),
    Action("topic-truncate", truncate, "topic"),
    Action("topic-elect", elect),
    Action("topic-elect-unclean", elect_unclean, "topic"),
)
