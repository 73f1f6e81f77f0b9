"""Access: ACLs, users with SCRAM passwords, delegation tokens.

Owns these pages. Only a password's salted form is sent to the cluster. Never shows a password or a token's HMAC.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.admin.acls import add_acls, described_acls, remove_acls
from kbroker.admin.errors import AdminError, WrongInput, raise_any
from kbroker.admin.tokens import described_tokens, expire_token
from kbroker.admin.users import TYPES, add_user, described_users, remove_user
from kbroker.console.console import Console
from kbroker.console.listing import Listing, has_words
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values
from kbroker.security.authorizer.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

RESOURCES: Final = tuple(each.title for each in ResourceType if each > ResourceType.ANY)
OPERATIONS: Final = tuple(each.title for each in Operation if each > Operation.ANY)
_PATTERNS: Final = ("Literal", "Prefixed")


def acl_row(acl: Acl) -> dict[str, str]:
    """Return the fields of an ACL for the form that removes the ACL."""
    pattern, entry = acl
    return {
        "resource": pattern.resource_type.title,
        "resource_name": pattern.name,
        "pattern": pattern.pattern_type.title,
        "principal": entry.principal,
        "host": entry.host,
        "permission": entry.permission.title,
        "operation": entry.operation.title,
    }


async def find_acls(console: Console, values: Values) -> Facts:
    """Return a page of the ACLs."""
    kind, text = values.text("resource"), values.text("q").lower()
    acls, failure = await console.ask_or_fail(lambda admin: sorted(described_acls(admin, AclFilter())))
    found = [acl_row(each) for each in acls or ()]
    chosen = [
        each
        for each in found
        if (not kind or each["resource"] == kind)
        and has_words(f"{each['resource_name']} {each['principal']} {each['host']}", text)
    ]
    return {
        "list": Listing(chosen, values.page(), "/acls", {"resource": kind, "q": text}),
        "resources": RESOURCES,
        "operations": OPERATIONS,
        "patterns": _PATTERNS,
        "resource": kind,
        "q": text,
        "failure": failure,
        "all": len(found),
        "tab": "acls",
    }


def _acl(values: Values) -> Acl:
    """Return the ACL in a form's fields. Raises WrongInput."""
    by_title = {each.title: each for each in ResourceType if each > ResourceType.ANY}
    kind = by_title[values.one_of("resource", RESOURCES)]
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else values.needed("resource_name", "the name of the resource")
    principal = values.needed("principal", "the principal")
    if ":" not in principal:
        raise WrongInput(f"a principal is TYPE:NAME, like User:alice, not {principal[:100]!r}")
    pattern_type = PatternType[values.one_of("pattern", _PATTERNS).upper()]
    operation = {each.title: each for each in Operation}[values.one_of("operation", OPERATIONS)]
    permission = Permission[values.one_of("permission", ("Allow", "Deny")).upper()]
    entry = Entry(principal, values.text("host") or "*", operation, permission)
    return Acl(Pattern(kind, name, pattern_type), entry)


def acl_add(admin: Any, values: Values) -> Done:
    """Add an ACL."""
    ((acl, failure),) = add_acls(admin, [_acl(values)])
    if failure is not None:
        raise AdminError(f"cannot add {acl}: {failure}")
    return Done(f"Added: {acl}", "/acls")


def acl_remove(admin: Any, values: Values) -> Done:
    """Remove exactly one ACL."""
    pattern, entry = _acl(values)
    wanted = AclFilter(*pattern, entry.principal, entry.host, entry.operation, entry.permission)
    removed, failures = remove_acls(admin, [wanted])
    raise_any(failures)
    if not removed:
        raise AdminError("this ACL does not exist any more")
    return Done(f"Removed: {removed[0]}", "/acls")


async def find_users(console: Console, values: Values) -> Facts:
    """Return the users with passwords."""
    users, failure = await console.ask_or_fail(described_users)
    credentials, failures = users or ([], [])
    by_name: dict[str, list[Any]] = {}
    for each in credentials:
        by_name.setdefault(each.user, []).append(each)
    return {
        "list": Listing(sorted(by_name.items()), values.page(), "/users"),
        "mechanisms": tuple(TYPES),
        "failure": failure or "; ".join(failures) or None,
        "tab": "users",
    }


def user_add(admin: Any, values: Values) -> Done:
    """Set a user's password."""
    name = values.needed("name", "the name")
    password = values.raw("password")
    if not password:
        raise WrongInput("a password must not be empty")
    if any("\ud800" <= each <= "\udfff" for each in password):
        raise WrongInput("a password is UTF-8")
    if password != values.raw("again"):
        raise WrongInput("the passwords differ")
    mechanism = values.one_of("mechanism", ("all", *TYPES))
    add_user(admin, name, password, tuple(TYPES) if mechanism == "all" else (mechanism,))
    return Done(f"{name} has a password.", "/users")


def user_remove(admin: Any, values: Values) -> Done:
    """Delete a user's passwords."""
    name = values.needed("name", "the name")
    mechanisms = remove_user(admin, name)
    return Done(f"{name} has no password any more for {', '.join(mechanisms)}.", "/users")


async def find_tokens(console: Console, values: Values) -> Facts:
    """Return the delegation tokens that the console may read, but never an HMAC."""
    found, failure = await console.ask_or_fail(described_tokens)
    rows = [
        {
            "id": each.token_id,
            "owner": f"{each.principal_type}:{each.principal_name}",
            "renewers": [f"{one.principal_type}:{one.principal_name}" for one in each.renewers],
            "issued": each.issue_timestamp,
            "expires": each.expiry_timestamp,
            "until": each.max_timestamp,
        }
        for each in found or ()
    ]
    return {"list": Listing(rows, values.page(), "/tokens"), "failure": failure, "tab": "tokens"}


def token_expire(admin: Any, values: Values) -> Done:
    """Expire a token now."""
    token = values.needed("id", "the token's id")
    expire_token(admin, token)
    return Done(f"Token {token} is gone.", "/tokens")


PAGES: Final = (
    Page("/acls", "acls.html", find_acls),
    Page("/users", "users.html", find_users),
    Page("/tokens", "tokens.html", find_tokens),
)
ACTIONS: Final = (
    Action("acl-add", acl_add),
    Action("acl-remove", acl_remove, "principal"),
    Action("user-add", user_add, secret=frozenset({"password", "again"})),
    Action("user-remove", user_remove, "name"),
    Action("token-expire", token_expire, "id"),
)
