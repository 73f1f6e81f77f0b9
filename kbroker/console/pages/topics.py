"""The list of topics (which may be long), and the creation of a topic.

Owns search, order and pages of the list. The server computes these, so that the page is fast even for ten thousand
topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kbroker.admin.cluster_view import TopicView
from kbroker.admin.errors import WrongInput, raise_any
from kbroker.admin.topics import create_topics
from kbroker.console.console import Console
from kbroker.console.listing import Listing, has_words, place
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.sampler import Samples
from kbroker.console.values import Values

_HEALTH: Final = ("", "under", "min-isr", "offline")
_ORDERS: Final[dict[str, Callable[[TopicView, Samples], Any]]] = {
    "name": lambda topic, _: topic.name,
    "partitions": lambda topic, _: len(topic.partitions),
    "replicas": lambda topic, _: topic.replicas,
    "size": lambda topic, samples: samples.sizes.get(topic.name, -1),
    "rate": lambda topic, samples: samples.topics.get(topic.name).last or 0.0,
    "health": lambda topic, _: (-topic.offline, -topic.under_replicated),
}
_BIG_FIRST: Final = ("partitions", "replicas", "size", "rate")


async def find(console: Console, values: Values) -> Facts:
    """Return a page of the list."""
    samples, view = console.sampler.samples, await console.view()
    text, internal = values.text("q"), values.flag("internal")
    below = {name for name, _ in samples.under_min_isr}
    health = values.one_of("health", _HEALTH)
    order = values.one_of("sort", list(_ORDERS))
    big_first = order in _BIG_FIRST
    downwards = values.one_of("dir", ("desc", "asc") if big_first else ("asc", "desc")) == "desc"
    found = [
        topic
        for topic in view.topics.values()
        if (internal or not topic.internal) and has_words(topic.name, text) and _ails(topic, health, below)
    ]
    found.sort(key=lambda topic: topic.name)
    found.sort(key=lambda topic: _ORDERS[order](topic, samples), reverse=downwards)
    query = {
        "q": text,
        "health": health,
        "internal": "1" if internal else None,
        "sort": order if order != "name" else None,
        "dir": ("desc" if downwards else "asc") if downwards != big_first else None,
    }

    def sorted_by(other: str) -> str:
        usual = other in _BIG_FIRST
        down = (not downwards) if other == order else usual
        turned = None if down == usual else "desc" if down else "asc"
        return place("/topics", **{**query, "sort": other if other != "name" else None, "dir": turned})

    return {
        "list": Listing(found, values.page(), "/topics", query),
        "samples": samples,
        "all": len(view.topics),
        "hidden": sum(topic.internal for topic in view.topics.values()) if not internal else 0,
        "q": text,
        "internal": internal,
        "health": health,
        "below": below,
        "order": order,
        "downwards": downwards,
        "sorted_by": sorted_by,
        "brokers": len(view.brokers),
    }


def _ails(topic: TopicView, health: str, below: set[str]) -> bool:
    """Whether a topic has the selected health; the sampler provides `below`, the topics below min.insync.replicas."""
    match health:
        case "under":
            return topic.under_replicated > 0
        case "min-isr":
            return topic.name in below
        case "offline":
            return topic.offline > 0
    return True


def create(admin: Any, values: Values) -> Done:
    """Create a topic."""
    name = values.needed("name", "the topic's name")
    partitions = values.number("partitions", "the number of partitions", -1, least=1)
    replicas = values.number("replicas", "the number of replicas", -1, least=1)
    configs: dict[str, str] = {}
    for line in values.raw("configs").splitlines():
        if line.strip():
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise WrongInput(f"a config is KEY=VALUE, not {line.strip()[:80]!r}")
            configs[key.strip()] = value.strip()
    refused = create_topics(admin, [name], partitions, replicas, configs).values()
    raise_any([each.text for each in refused if each is not None])
    return Done(f"Topic {name} is created.", place("/topics", name))


PAGES: Final = (Page("/topics", "topics.html", find),)
ACTIONS: Final = (Action("topic-create", create),)
