"""Guards of the APIs about configs: a resource needs a right on itself, brokers and their loggers one on the cluster.

Owns the choice of the right, by the type of a resource.
"""

from __future__ import annotations

from typing import Any

from kbroker.handlers.authorized.guard import REFUSALS, Refuse, Verdict
from kbroker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP
from kbroker.handlers.describe_configs import TOPIC as TOPIC_CONFIGS
from kbroker.handlers.registry import RequestContext
from kbroker.protocol.errors import DEFAULT_MESSAGES, ErrorCode
from kbroker.security.authorizer.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights

_KINDS = {
    TOPIC_CONFIGS: ResourceType.TOPIC,
    GROUP: ResourceType.GROUP,
    BROKER: ResourceType.CLUSTER,
    BROKER_LOGGER: ResourceType.CLUSTER,
    CLIENT_METRICS: ResourceType.CLUSTER,
}


def resource_right(operation: Operation) -> Verdict:
    """Check a right on a resource; unknown types are left to the handler, which refuses them."""

    def verdict(_ctx: RequestContext, rights: Rights, resource: Any) -> int:
        kind = _KINDS.get(resource.resource_type)
        if kind is None:
            return 0
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
        return 0 if rights.may(operation, kind, name) else REFUSALS[kind]

    return verdict


def refused_resource(result: type[Any]) -> Refuse:
    """Build the result for a refused resource."""

    async def refuse(_ctx: RequestContext, resource: Any, code: int) -> Any:
        return result(
            error_code=code,
            error_message=DEFAULT_MESSAGES.get(ErrorCode(code)),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return refuse
