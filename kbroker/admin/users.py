"""Users with SCRAM passwords: listing them, and setting and deleting passwords.

A password never leaves this process: only its salted form is sent. Never prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbroker.admin.errors import AdminError, check_code, code_error, error_text
from kbroker.admin.own_request import ask_controller
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from kbroker.security.sasl.scram_credential import (
    LEAST_ITERATIONS,
    MECHANISM_TYPES,
    new_salt,
    salted_password,
)

TYPES: Final = {name: kind for kind, name in MECHANISM_TYPES.items()}
"""Kafka's codes of the SCRAM mechanisms, by mechanism name."""


@dataclass(frozen=True, slots=True)
class Credential:
    """States that a user has a password for a mechanism; does not contain the password."""

    user: str
    mechanism: str
    iterations: int


def described_users(admin: Any, names: Sequence[str] = ()) -> tuple[list[Credential], list[str]]:
    """Return users that have passwords (of all users, if `names` is empty), and failures by user. Raises AdminError."""
    wanted = [UserName(name) for name in dict.fromkeys(names)] or None
    request = DescribeUserScramCredentialsRequest(users=wanted)
    answer = ask_controller(admin, request, DescribeUserScramCredentialsResponse)
    check_code(answer.error_code, "cannot list users", answer.error_message)
    failures = [
        f"{each.user}: {error_text(code_error(each.error_code), each.error_message)}"
        for each in answer.results
        if each.error_code
    ]
    found = [
        Credential(each.user, MECHANISM_TYPES.get(info.mechanism, "?"), info.iterations)
        for each in sorted(answer.results, key=lambda result: result.user)
        for info in each.credential_infos
    ]
    return found, failures


def add_user(
    admin: Any, name: str, password: str, mechanisms: Sequence[str], iterations: int = LEAST_ITERATIONS
) -> None:
    """Set a user's password for some mechanisms. Raises AdminError."""
    upsertions = []
    for mechanism in mechanisms:
        salt = new_salt()
        salted = salted_password(mechanism, password, salt, iterations)
        upsertions.append(ScramCredentialUpsertion(name, TYPES[mechanism], iterations, salt, salted))
    for each in upsertions:  # one request per mechanism: a request may name a user only once
        _alter(admin, AlterUserScramCredentialsRequest(upsertions=[each]), f"cannot add {name}")


def mechanisms_of(admin: Any, name: str) -> tuple[str, ...]:
    """Return the mechanisms for which a user has a password. Raises AdminError if the user does not exist."""
    request = DescribeUserScramCredentialsRequest(users=[UserName(name)])
    result = ask_controller(admin, request, DescribeUserScramCredentialsResponse).results[0]
    if result.error_code:
        message = error_text(code_error(result.error_code), result.error_message)
        raise AdminError(f"cannot remove {name}: {message}")
    return tuple(MECHANISM_TYPES[info.mechanism] for info in result.credential_infos)


def remove_user(admin: Any, name: str, mechanisms: Sequence[str] = ()) -> tuple[str, ...]:
    """Delete a user's passwords for all mechanisms or some; return these mechanisms. Raises AdminError."""
    removed = tuple(mechanisms) or mechanisms_of(admin, name)
    for mechanism in removed:
        deletion = ScramCredentialDeletion(name, TYPES[mechanism])
        _alter(admin, AlterUserScramCredentialsRequest(deletions=[deletion]), f"cannot remove {name}")
    return removed


def _alter(admin: Any, request: AlterUserScramCredentialsRequest, failure: str) -> None:
    answer = ask_controller(admin, request, AlterUserScramCredentialsResponse)
    for each in answer.results:
        check_code(each.error_code, failure, each.error_message)
