"""Access control lists, delegation tokens (KIP-48), and the credentials of SCRAM users (KIP-554)."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct

# DescribeAcls (key 29): return access control lists (KIP-140, KIP-290).


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    resource_type_filter: i8 = f()
    resource_name_filter: str | None = f(nullable="0+")
    pattern_type_filter: i8 = f("1+", default=3)
    principal_filter: str | None = f(nullable="0+")
    host_filter: str | None = f(nullable="0+")
    operation: i8 = f()
    permission_type: i8 = f()


@struct
class AclDescription:
    principal: str = f()
    host: str = f()
    operation: i8 = f()
    permission_type: i8 = f()


@struct
class DescribeAclsResource:
    resource_type: i8 = f()
    resource_name: str = f()
    pattern_type: i8 = f("1+", default=3)
    acls: list[AclDescription] = f()


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resources: list[DescribeAclsResource] = f()


# CreateAcls (key 30): add access control lists (KIP-140, KIP-290).


@struct
class AclCreation:
    resource_type: i8 = f()
    resource_name: str = f()
    resource_pattern_type: i8 = f("1+", default=3)
    principal: str = f()
    host: str = f()
    operation: i8 = f()
    permission_type: i8 = f()


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    creations: list[AclCreation] = f()


@struct
class AclCreationResult:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: i32 = f()
    results: list[AclCreationResult] = f()


# DeleteAcls (key 31): remove the access control lists that match filters (KIP-140, KIP-290).


@struct
class DeleteAclsFilter:
    resource_type_filter: i8 = f()
    resource_name_filter: str | None = f(nullable="0+")
    pattern_type_filter: i8 = f("1+", default=3)
    principal_filter: str | None = f(nullable="0+")
    host_filter: str | None = f(nullable="0+")
    operation: i8 = f()
    permission_type: i8 = f()


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = f()


@struct
class DeleteAclsMatchingAcl:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resource_type: i8 = f()
    resource_name: str = f()
    pattern_type: i8 = f("1+", default=3)
    principal: str = f()
    host: str = f()
    operation: i8 = f()
    permission_type: i8 = f()


@struct
class DeleteAclsFilterResult:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = f()


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    throttle_time_ms: i32 = f()
    filter_results: list[DeleteAclsFilterResult] = f()


# CreateDelegationToken (key 38): a token with which its owner can authenticate elsewhere (KIP-48, KIP-373).


@struct
class CreatableRenewers:
    principal_type: str = f()
    principal_name: str = f()


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = f("3+", nullable="3+")
    owner_principal_name: str | None = f("3+", nullable="3+")
    renewers: list[CreatableRenewers] = f()
    max_lifetime_ms: i64 = f()


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    error_code: i16 = f()
    principal_type: str = f()
    principal_name: str = f()
    token_requester_principal_type: str = f("3+")
    token_requester_principal_name: str = f("3+")
    issue_timestamp_ms: i64 = f()
    expiry_timestamp_ms: i64 = f()
    max_timestamp_ms: i64 = f()
    token_id: str = f()
    hmac: bytes = f()
    throttle_time_ms: i32 = f()


# RenewDelegationToken (key 39): extend the validity of a delegation token (KIP-48).


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    hmac: bytes = f()
    renew_period_ms: i64 = f()


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    error_code: i16 = f()
    expiry_timestamp_ms: i64 = f()
    throttle_time_ms: i32 = f()


# ExpireDelegationToken (key 40): let a delegation token expire earlier, or immediately (KIP-48).


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    hmac: bytes = f()
    expiry_time_period_ms: i64 = f()


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    error_code: i16 = f()
    expiry_timestamp_ms: i64 = f()
    throttle_time_ms: i32 = f()


# DescribeDelegationToken (key 41): the delegation tokens that a client may see (KIP-48, KIP-373).


@struct
class DescribeDelegationTokenOwner:
    principal_type: str = f()
    principal_name: str = f()


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = f(nullable="0+")


@struct
class DescribedDelegationTokenRenewer:
    principal_type: str = f()
    principal_name: str = f()


@struct
class DescribedDelegationToken:
    principal_type: str = f()
    principal_name: str = f()
    token_requester_principal_type: str = f("3+")
    token_requester_principal_name: str = f("3+")
    issue_timestamp: i64 = f()
    expiry_timestamp: i64 = f()
    max_timestamp: i64 = f()
    token_id: str = f()
    hmac: bytes = f()
    renewers: list[DescribedDelegationTokenRenewer] = f()


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    error_code: i16 = f()
    tokens: list[DescribedDelegationToken] = f()
    throttle_time_ms: i32 = f()


# DescribeUserScramCredentials (key 50): users' mechanisms and iterations, without the credentials (KIP-554).


@struct
class UserName:
    name: str = f()


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = f(nullable="0+")


@struct
class CredentialInfo:
    mechanism: i8 = f()
    iterations: i32 = f()


@struct
class DescribeUserScramCredentialsResult:
    user: str = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    credential_infos: list[CredentialInfo] = f()


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = f()


# AlterUserScramCredentials (key 51): set and remove SCRAM credentials (KIP-554). Passwords are sent salted.


@struct
class ScramCredentialDeletion:
    name: str = f()
    mechanism: i8 = f()


@struct
class ScramCredentialUpsertion:
    name: str = f()
    mechanism: i8 = f()
    iterations: i32 = f()
    salt: bytes = f()
    salted_password: bytes = f()


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = f()
    upsertions: list[ScramCredentialUpsertion] = f()


@struct
class AlterUserScramCredentialsResult:
    user: str = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: i32 = f()
    results: list[AlterUserScramCredentialsResult] = f()
