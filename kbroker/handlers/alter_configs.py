"""AlterConfigs (key 33), versions 0-2: replace all configs of a resource (KIP-133)."""

from __future__ import annotations

from collections import Counter

from kbroker.handlers.config_changes import KINDS, change, check_request
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
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
    seen = Counter((r.resource_type, r.resource_name) for r in request.resources)
    answers = []
    for resource in request.resources:
        try:
            if seen[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _alter(ctx, resource, request.validate_only)
        except ApiError as err:
            answers.append(_answer(resource, err.code, err.message or DEFAULT_MESSAGES.get(err.code)))
        else:
            answers.append(_answer(resource, 0, None))
    return AlterConfigsResponse(responses=answers)


def _alter(ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    check_request([(c.name, c.value) for c in resource.configs], KINDS, resource.resource_type)
    configs = {c.name: c.value or "" for c in resource.configs}
    change(ctx, resource.resource_type, resource.resource_name, lambda _old: configs, validate_only=validate_only)
