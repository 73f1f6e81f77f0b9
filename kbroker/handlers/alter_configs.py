"""AlterConfigs (key 33), versions 0-2: replace all configs of a resource (KIP-133)."""

from __future__ import annotations

from kbroker.handlers.config_changes import KINDS, change, check_request, outcomes
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def _on_error(request: AlterConfigsRequest, code: int, message: str | None) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_answer(r, code, message) for r in request.resources])


def _answer(resource: AlterConfigsResource, code: int, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(AlterConfigsRequest, AlterConfigsResponse, "0-2", _on_error)
def alter_configs(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Change each resource by itself."""
    done = outcomes(request.resources, lambda each: _alter(ctx, each, request.validate_only))
    return AlterConfigsResponse(responses=[_answer(*each) for each in done])


def _alter(ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    check_request([(c.name, c.value) for c in resource.configs], KINDS, resource.resource_type)
    configs = {c.name: c.value or "" for c in resource.configs}
    change(ctx, resource.resource_type, resource.resource_name, lambda _old: configs, validate_only=validate_only)
