"""DescribeUserScramCredentials (key 50): which SCRAM credentials users have, and nothing of them (KIP-554)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


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
