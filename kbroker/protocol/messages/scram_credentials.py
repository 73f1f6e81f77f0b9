"""Credentials of SCRAM users (KIP-554)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct

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
