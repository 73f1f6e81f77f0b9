"""AlterConfigs (key 33), versions 0-2: replace all configs of a resource (KIP-133)."""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided, each
from kbroker.handlers.config_changes import KINDS, change, check_request, outcomes
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def _on_error(request: AlterConfigsRequest, code: int, message: str | None) -> Divided[AlterConfigsResponse]:
    responses = yield from each(request.resources, lambda resource: _answer(resource, code, message))
    return AlterConfigsResponse(responses=responses)


def _answer(resource: AlterConfigsResource, code: int, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(AlterConfigsRequest, AlterConfigsResponse, "0-2", _on_error)
def alter_configs(
    ctx: RequestContext, request: AlterConfigsRequest
) -> Divided[AlterConfigsResponse | Awaitable[AlterConfigsResponse]]:
    """Change each resource by itself."""
    done = yield from outcomes(request.resources, lambda resource: _alter(ctx, resource, request.validate_only))
    responses = yield from each(done, lambda outcome: _answer(*outcome))
    return in_effect(ctx, AlterConfigsResponse(responses=responses))


def _alter(ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> Divided[None]:
    yield from check_request(((c.name, c.value) for c in resource.configs), KINDS, resource.resource_type)
    configs = {c.name: c.value or "" for c in resource.configs}
    kind, name = resource.resource_type, resource.resource_name
    yield from change(ctx, kind, name, lambda _old: configs, validate_only=validate_only)
