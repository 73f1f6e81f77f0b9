"""The rules against changes of topics with remote storage, and of the topic that names all remote segments.

Owns the refusals of requests that break these rules. Never reads or changes anything. A broker without tiered storage
does not use the topic that names all remote segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.topic_names import INTERNAL_TOPICS

_KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def check_names_no_segments(topic: str, *, is_tiered: bool) -> None:
    """Raise ApiError (POLICY_VIOLATION) for the topic that names all remote segments.

    The broker finds the segments only by the records of this topic. The number of the topic's partitions determines the
    partition of each record.
    """
    if is_tiered and topic == REMOTE_LOG_METADATA_TOPIC:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{topic} names all segments in remote storage")


def why_not_remote(topic: str, before: Mapping[str, str], after: Mapping[str, str], *, is_tiered: bool) -> str | None:
    """Return the reason why remote storage forbids a topic's new configs, or None if it does not.

    If the change would switch off remote storage, the reason has Kafka's text.
    """
    if topic == REMOTE_LOG_METADATA_TOPIC and is_tiered:
        for name, value in _KEPT.items():
            if after.get(name) != value:
                return f"{topic} needs {name}={value}: it names all segments in remote storage"

    def is_on(configs: Mapping[str, str], name: str) -> bool:
        return configs.get(name, "false").strip().lower() == "true"

    if is_on(after, "remote.storage.enable") and (topic in INTERNAL_TOPICS or topic == REMOTE_LOG_METADATA_TOPIC):
        return f"the topic {topic} of the broker itself cannot use remote storage"
    if not is_on(before, "remote.storage.enable") or is_on(after, "remote.storage.enable"):
        return None
    if is_on(after, "remote.log.delete.on.disable"):
        return None
    return (
        "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and "
        "turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to "
        "disable remote storage and delete all remote data, please set "
        "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
    )
