"""The topic `_schemas` of any Kafka, as a registry needs it: one partition, compacted.

Owns its creation, and the refusal of a topic that would lose schemas. Never writes records.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.admin import ConfigResource
from kafka.errors import LeaderNotAvailableError

from kbroker.admin.cluster_view import TopicView, cluster_view
from kbroker.admin.connection import patience, patiently
from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.topics import EXISTS, create_topics
from kbroker.schema_registry.records import SCHEMAS_TOPIC

_REPLICAS: Final = 3
_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_PATIENCE_S: Final = 5.0


class UnsuitableTopic(AdminError):  # noqa: N818 - an outcome
    """The topic exists, but could lose schemas."""


def schemas_topic(admin: Any) -> TopicView:
    """Return the topic, or create it if it is missing. Raises UnsuitableTopic and AdminError."""
    view = _found(admin)
    if view is None:
        brokers = len(cluster_view(admin, []).brokers)
        replicas = max(min(_REPLICAS, brokers), 1)
        refusal = create_topics(admin, [SCHEMAS_TOPIC], 1, replicas, {_POLICY: _COMPACT})[SCHEMAS_TOPIC]
        if refusal is not None and refusal.name != EXISTS:
            raise AdminError(refusal.text)
        with patience(_PATIENCE_S):
            view = patiently(lambda: _there(admin), reads=True)
    if len(view.partitions) != 1:
        raise UnsuitableTopic(
            f"topic {SCHEMAS_TOPIC} has {len(view.partitions)} partitions; "
            "a registry needs one, which orders all changes"
        )
    found = admin.describe_configs([ConfigResource("TOPIC", SCHEMAS_TOPIC)]).get("topic", {}).get(SCHEMAS_TOPIC, {})
    policy = found.get(_POLICY, {}).get("value")
    if policy is not None and policy != _COMPACT:
        raise UnsuitableTopic(
            f"topic {SCHEMAS_TOPIC} has {_POLICY}={policy}, and would lose schemas: "
            f"kbroker config set --topic {SCHEMAS_TOPIC} {_POLICY}={_COMPACT}"
        )
    return view


def _found(admin: Any) -> TopicView | None:
    view = cluster_view(admin, [SCHEMAS_TOPIC])
    if SCHEMAS_TOPIC not in view.topics:
        check_code(view.refused.get(SCHEMAS_TOPIC, 0), f"topic {SCHEMAS_TOPIC}")
    return view.topics.get(SCHEMAS_TOPIC)


def _there(admin: Any) -> TopicView:
    view = _found(admin)
    if view is None or not view.partitions or view.partitions[0].leader_id < 0:
        raise LeaderNotAvailableError
    return view
