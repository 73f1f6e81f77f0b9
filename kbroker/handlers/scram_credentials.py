"""The APIs of SCRAM credentials (KIP-554).

DescribeUserScramCredentials (key 50), version 0: return the mechanisms and iterations of all users or of some users.

AlterUserScramCredentials (key 51), version 0: set and remove credentials, independently for each user.

Behaviour: a repeated user is refused. The request has a salted password; the broker stores only the keys that verify
it. In a cluster the request is forwarded to the controller, as in Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import each, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kbroker.security.sasl.scram_credential import (
    LEAST_ITERATIONS,
    MECHANISM_TYPES,
    MOST_ITERATIONS,
    USERS,
    credentials_of,
    entity_name,
    from_salted_password,
    user_of,
)

_Change = ScramCredentialDeletion | ScramCredentialUpsertion


@handles(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, "0")
async def describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe the credentials of the named users, or of all users."""
    configs = ctx.services.controller.state.user_configs
    asked: dict[str, int] = {}
    for wanted in request.users or ():
        asked[wanted.name] = asked.get(wanted.name, 0) + 1
        await turn
    if not asked:
        asked = dict.fromkeys(map(user_of, configs), 1)
    results = []
    for user, times in asked.items():
        result = _result(configs, user, times)
        if request.users or not result.error_code:
            results.append(result)
        await turn
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


async def _refused(
    request: AlterUserScramCredentialsRequest | None, code: int, message: str | None
) -> AlterUserScramCredentialsResponse:
    changes: list[_Change] = [] if request is None else [*request.deletions, *request.upsertions]
    users = dict.fromkeys(await each(changes, lambda change: change.name))
    results = await each(users, lambda user: AlterUserScramCredentialsResult(user, code, message))
    return AlterUserScramCredentialsResponse(results=results)


@handles(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, "0", _refused)
async def alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Change credentials. The response is sent once the changes are in effect."""
    controller = ctx.services.controller
    controller.check_is_controller()
    asked: list[_Change] = [*request.deletions, *request.upsertions]
    changes: dict[str, _Change] = {}
    refused: dict[str, ApiError] = {}
    for change in asked:
        if change.name not in refused:  # the response contains only the first fault of a user
            try:
                if changes.pop(change.name, None) is not None:
                    text = "A user credential cannot be altered twice in the same request"
                    raise ApiError(ErrorCode.DUPLICATE_RESOURCE, text)
                revise = _revise(change)
                if isinstance(change, ScramCredentialDeletion):
                    revise(controller.decided.configs(USERS, entity_name(change.name)))
                changes[change.name] = change
            except ApiError as error:
                refused[change.name] = error
        await turn
    results = []
    for user, change in changes.items():
        try:
            await controller.change_configs(USERS, entity_name(user), _revise(change))
            results.append(AlterUserScramCredentialsResult(user, error_message=None))
        except ApiError as error:
            refused[user] = error
        await turn
    results += await each(refused.items(), lambda of: AlterUserScramCredentialsResult(of[0], of[1].code, of[1].message))
    return await ctx.services.in_effect(AlterUserScramCredentialsResponse(results=results))


def _revise(change: _Change) -> Callable[[Mapping[str, str]], dict[str, str]]:
    """Return a function that computes a user's new configs from the old configs. Both functions raise ApiError."""
    if not change.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = MECHANISM_TYPES.get(change.mechanism)
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialUpsertion):
        if change.iterations < LEAST_ITERATIONS:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        if change.iterations > MOST_ITERATIONS:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        salted, salt = bytes(change.salted_password), bytes(change.salt)
        text = from_salted_password(mechanism, salted, salt, change.iterations).text()
        return lambda old: {**old, mechanism: text}

    def without(old: Mapping[str, str]) -> dict[str, str]:
        if mechanism not in old:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return {name: value for name, value in old.items() if name != mechanism}

    return without
