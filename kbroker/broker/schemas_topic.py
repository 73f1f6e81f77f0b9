"""The topic `_schemas`, which a registry in this broker keeps its schemas in.

Owns its creation: one partition, compacted, three replicas where there are so many brokers, as Confluent's registry
creates it. A topic that exists already is taken as it is.
"""

from __future__ import annotations

import logging
from typing import Final

from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.schema_registry.records import SCHEMAS_TOPIC

log = logging.getLogger(__name__)

_REPLICAS: Final = 3
_CONFIGS: Final = {"cleanup.policy": "compact"}


async def create_schemas_topic(metadata: ClusterMetadata) -> None:
    """Create the topic if it is missing. A failure is only logged: the registry cannot serve, and tries again."""
    if SCHEMAS_TOPIC in metadata.decided.topics:
        return
    try:
        replicas = max(min(_REPLICAS, len(metadata.state.brokers)), 1)
        plan = metadata.plan_topic(SCHEMAS_TOPIC, 1, replicas, None, _CONFIGS)
        refused = (await metadata.put_in_pieces([plan])).get(SCHEMAS_TOPIC)
        if refused is not None and refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise refused
        if (published := metadata.published()) is not None:
            await published
    except (ApiError, OSError) as error:
        log.warning("the topic %s cannot be created: %s", SCHEMAS_TOPIC, error)
