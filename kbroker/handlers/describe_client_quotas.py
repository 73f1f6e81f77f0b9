"""DescribeClientQuotas (key 48), versions 0-1: the quotas that a filter means (KIP-546)."""

from __future__ import annotations

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kbroker.quota.filters import QuotaFilter


def _refused(_request: DescribeClientQuotasRequest, code: int, message: str | None) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


@handles(DescribeClientQuotasRequest, DescribeClientQuotasResponse, "0-1", _refused)
def describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> Divided[DescribeClientQuotasResponse]:
    """Describe what is in effect. A filter names each type once, so a long one is refused at its fourth component."""
    components = [(each.entity_type, each.match_type, each.match) for each in request.components[:4]]
    wanted = QuotaFilter(components, strict=request.strict)
    entries = []
    for entity, values in ctx.services.controller.state.quotas.items():
        if wanted.matches(entity):
            names = [EntityData(kind, name) for kind, name in entity.parts().items()]
            entries.append(EntryData(names, [ValueData(key, value) for key, value in values.items()]))
        yield
    return DescribeClientQuotasResponse(entries=entries)
