"""DescribeUserScramCredentials (key 50), version 0: mechanisms and iterations, of all users or of some."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kbroker.security.sasl.scram_credential import MECHANISM_TYPES
from kbroker.security.sasl.user_configs import credentials_of, entity_name, user_of


@handles(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, "0")
def describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Divided[DescribeUserScramCredentialsResponse]:
    """Describe credentials; of all users where none is named."""
    configs = ctx.services.controller.state.user_configs
    asked: dict[str, int] = {}
    for each in request.users or ():
        asked[each.name] = asked.get(each.name, 0) + 1
        yield
    if not asked:
        asked = dict.fromkeys(map(user_of, configs), 1)
    results = []
    for user, times in asked.items():
        result = _result(configs, user, times)
        if request.users or not result.error_code:
            results.append(result)
        yield
    return DescribeUserScramCredentialsResponse(results=results)


def _result(configs: Mapping[str, Mapping[str, str]], user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return DescribeUserScramCredentialsResult(user, ErrorCode.DUPLICATE_RESOURCE, text)
    found = credentials_of(configs.get(entity_name(user), {}))
    if not found:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        return DescribeUserScramCredentialsResult(user, ErrorCode.RESOURCE_NOT_FOUND, text)
    infos = [CredentialInfo(kind, found[name].iterations) for kind, name in MECHANISM_TYPES.items() if name in found]
    return DescribeUserScramCredentialsResult(user, credential_infos=infos)
