"""Suggestions for a name that does not exist.

Owns the message that a topic or a group does not exist, with a remedy. Never prints.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kafka.errors import KafkaError

from kbroker.config.table import TOPIC

_NEAR: Final = 0.7


def no_such_topic(admin: Any, name: str) -> str:
    """Return the message that a topic does not exist (with similar names), or that it has no partitions."""
    try:
        known = _topics(admin)
    except KafkaError:  # the caller is possibly not allowed to list the existing names
        known = []
    return missing_topic(name, known)


def missing_topic(name: str, known: Sequence[str]) -> str:
    """Return the message of `no_such_topic`; `known` has the existing topics."""
    if name in known:
        return f"topic {name} is listed without partitions, as a view is while its source does not exist"
    return f"topic {name} does not exist{_hint(name, lambda: known, '`kbroker topic list` lists the existing topics')}"


def no_such_group(admin: Any, name: str) -> str:
    """Return the message that a group does not exist, with similar names."""
    remedy = "`kbroker group list` lists the existing groups"
    return f"group {name} does not exist{_hint(name, lambda: _groups(admin), remedy)}"


def no_such_topic_config(keys: Iterable[str]) -> str:
    """Return a suggestion for refused topic configs: a key similar to the first unknown key, or an empty text.

    This function knows only Kafka's keys, although a broker may have further keys.
    """
    unknown = next((key for key in keys if key not in TOPIC), None)
    near = [] if unknown is None else difflib.get_close_matches(unknown, TOPIC, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _hint(name: str, known: Callable[[], Sequence[str]], remedy: str) -> str:
    try:
        near = difflib.get_close_matches(name, known(), 3, _NEAR)
    except KafkaError:  # the caller may not be allowed to list the existing names
        near = []
    return f"; did you mean {' or '.join(near)}?" if near else f"; {remedy}"


def _topics(admin: Any) -> list[str]:
    return [str(topic["name"]) for topic in admin.describe_topics()]


def _groups(admin: Any) -> list[str]:
    return [str(group["group_id"]) for group in admin.list_groups()]
