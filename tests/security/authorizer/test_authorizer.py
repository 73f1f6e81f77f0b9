"""The effect of ACLs: Kafka's rules one by one, and all of them compared with a model that checks every ACL."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.authorizer import authorizer as module
from kbroker.security.authorizer.acls import (
    OPERATIONS,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    added,
    without,
)
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.security.principal import Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "192.0.2.1"
T, G, C = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
PREFIXED, LITERAL = PatternType.PREFIXED, PatternType.LITERAL
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(name, operation, permission=ALLOW, who="User:alice", host="*", kind=T, pattern=LITERAL):
    return Acl(Pattern(kind, name, pattern), Entry(who, host, operation, permission))


def authorizer(*acls, **options):
    made = Authorizer(**options)
    made.replace(table(acls))
    return made


def table(acls):
    grouped = {}
    for each in acls:
        grouped.setdefault(each.pattern, set()).add(each.entry)
    return {pattern: frozenset(entries) for pattern, entries in grouped.items()}


def may(of, operation, name="orders", who=ALICE, host=HOST, kind=T):
    return of.rights_of(who, host).may(operation, kind, name)


def test_nobody_may_anything_without_an_acl():
    assert not may(authorizer(), READ)


def test_everyone_may_where_there_is_no_acl_at_all():
    of = authorizer(acl("orders", READ, who="User:bob"), allow_if_no_acl=True)
    assert may(of, WRITE, "payments")
    assert not may(of, READ)
    assert may(of, READ, kind=G)  # of the same name, and another resource
    for covers in (acl("ord", READ, who="User:bob", pattern=PREFIXED), acl("*", READ, who="User:bob")):
        assert not may(authorizer(covers, allow_if_no_acl=True), READ)
    assert may(authorizer(acl("ordinary", READ, pattern=PREFIXED), allow_if_no_acl=True), READ)


def test_super_users_may_what_is_denied():
    of = authorizer(acl("orders", ALL, DENY), super_users=[ALICE])
    assert may(of, READ)
    assert of.rights_of(ALICE, HOST).on_cluster(Operation.ALTER)
    assert not may(of, READ, who=Principal("User", "Alice"))
    assert not may(of, READ, who=Principal("Group", "alice"))


@pytest.mark.parametrize("allowing", [("orders", LITERAL), ("ord", PREFIXED), ("*", LITERAL)])
@pytest.mark.parametrize("denying", [("orders", LITERAL), ("or", PREFIXED), ("*", LITERAL)])
def test_what_denies_goes_before_what_allows(allowing, denying):
    allow = acl(allowing[0], READ, pattern=allowing[1])
    deny = acl(denying[0], READ, DENY, pattern=denying[1])
    assert may(authorizer(allow), READ)
    assert not may(authorizer(allow, deny), READ)


@pytest.mark.parametrize("operation", Operation)
def test_what_an_operation_implies(operation):
    implied = {
        asked
        for asked in OPERATIONS[T]
        if operation > Operation.ANY and may(authorizer(acl("orders", operation)), asked)
    }
    expected = {operation} & set(OPERATIONS[T])
    if operation in (READ, WRITE, Operation.DELETE, Operation.ALTER):
        expected |= {DESCRIBE}
    if operation is Operation.ALTER_CONFIGS:
        expected |= {Operation.DESCRIBE_CONFIGS}
    assert implied == (set(OPERATIONS[T]) if operation is ALL else expected)


def test_what_is_denied_implies_nothing():
    of = authorizer(acl("orders", ALL, host=HOST), acl("orders", READ, DENY))
    assert not may(of, READ)
    assert may(of, DESCRIBE)
    assert not any(may(authorizer(acl("orders", ALL), acl("orders", ALL, DENY)), each) for each in OPERATIONS[T])


def test_a_range_of_hosts_allows_and_denies():
    of = authorizer(acl("orders", READ, host="192.0.2.0/30"), acl("orders", READ, DENY, host="192.0.2.2/31"))
    assert [may(of, READ, host=f"192.0.2.{last}") for last in range(5)] == [True, True, False, False, False]
    assert may(of, READ, host="192.0.2.1")
    by_type = authorizer(acl("orders", WRITE, host="192.0.2.0/31"))
    assert by_type.decide_by_type(ALICE, "192.0.2.1", WRITE, T)
    assert not by_type.decide_by_type(ALICE, "192.0.2.2", WRITE, T)


def test_hosts_are_addresses():
    of = authorizer(acl("orders", READ, host=HOST))
    assert may(of, READ)
    assert not may(of, READ, host="192.0.2.2")
    assert not may(authorizer(acl("orders", READ, host="192.0.2.*")), READ)


def test_principals():
    assert may(authorizer(acl("orders", READ, who="User:*")), READ, who=BOB)
    assert not may(authorizer(acl("orders", READ, who="User:Alice")), READ)
    assert not may(authorizer(acl("orders", READ, who="user:alice")), READ)
    assert not may(authorizer(acl("orders", READ, who="User:al*")), READ)


def test_prefixes():
    of = authorizer(acl("foo", READ, pattern=PREFIXED))
    assert [name for name in ("foo", "foobar", "fo", "bar", "*") if may(of, READ, name)] == ["foo", "foobar"]
    assert not may(authorizer(acl("foo", READ)), READ, "foobar")
    assert not may(authorizer(acl("*", READ, pattern=PREFIXED)), READ, "foo")


def test_decisions_are_forgotten_when_acls_change():
    of = authorizer(acl("orders", READ))
    changes = []
    of.on_change(lambda: changes.append(1))
    rights = of.rights_of(ALICE, HOST)
    assert rights.may(READ, T, "orders")
    of.replace({})
    assert not rights.may(READ, T, "orders")
    assert changes == [1]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 10)
    monkeypatch.setattr(module, "REMEMBERED_RIGHTS", 10)
    of = authorizer(acl("t", READ, pattern=PREFIXED))
    rights = of.rights_of(ALICE, HOST)
    for number in range(35):
        assert rights.may(READ, T, f"t{number}")
        of.rights_of(Principal("User", str(number)), HOST)
    assert len(rights._decided) <= 10
    assert len(of._rights) <= 10


def test_what_may_be_read_is_known_until_acls_change():
    of = authorizer(acl("orders", READ), acl("more", WRITE))
    of.logs_allowed = False
    rights = of.rights_of(ALICE, HOST)
    assert [rights.may_read(name) for name in ("orders", "more", "orders", "more")] == [True, False, True, False]
    of.replace(table([acl("more", READ)]))
    assert [rights.may_read(name) for name in ("orders", "more", "orders", "more")] == [False, True, False, True]
    of.replace({})
    assert not rights.may_read("more")


def test_what_is_known_to_be_readable_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 10)
    of = authorizer(acl("t", READ, pattern=PREFIXED))
    rights = of.rights_of(ALICE, HOST)
    for number in range(35):
        assert rights.may_read(f"t{number}")
        assert 0 < len(rights._readable) <= 10
    before = set(rights._readable)
    assert rights.may_read("t" * 10_000)
    assert rights._readable == before


def test_authorized_operations_are_bits():
    of = authorizer(acl("orders", READ))
    assert of.rights_of(ALICE, HOST).operations(T, "orders") == 1 << READ | 1 << DESCRIBE
    assert authorizer(super_users=[ALICE]).rights_of(ALICE, HOST).operations(C, "kafka-cluster") == sum(
        1 << each for each in OPERATIONS[C]
    )


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl("orders", WRITE)], True),
        ([acl("orders", READ)], False),
        ([acl("orders", WRITE, host="192.0.2.9")], False),
        ([acl("orders", WRITE, who="User:*")], True),
        ([acl("orders", WRITE), acl("orders", WRITE, DENY)], False),
        ([acl("orders", WRITE), acl("o", ALL, DENY, pattern=PREFIXED)], False),
        ([acl("orders", WRITE), acl("orders-", ALL, DENY, pattern=PREFIXED)], True),
        ([acl("o", WRITE, pattern=PREFIXED), acl("orders", WRITE, DENY)], True),
        ([acl("orders", WRITE), acl("*", WRITE, DENY)], False),
        ([acl("*", WRITE), acl("a", WRITE, DENY, pattern=PREFIXED)], True),
        ([acl("group", WRITE, kind=G)], False),
    ],
)
def test_what_may_be_done_to_some_topic(acls, allowed):
    assert authorizer(*acls).rights_of(ALICE, HOST).may_with_any(WRITE, T) is allowed


def test_super_users_may_do_everything_to_some_topic():
    of = authorizer(acl("*", ALL, DENY), super_users=[ALICE])
    assert of.rights_of(ALICE, HOST).may_with_any(WRITE, T)


def test_the_log(caplog):
    of = authorizer(acl("orders", READ))
    rights = of.rights_of(ALICE, HOST)
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        rights.may(READ, T, "orders")
        rights.may(WRITE, T, "orders", logs=False)
        assert caplog.messages == []
        for _ in range(2):  # what is remembered is said again
            rights.may(WRITE, T, "orders")
    line = f"Principal = User:alice is Denied operation = WRITE from host = {HOST} on resource = Topic:LITERAL:orders"
    assert caplog.messages == [line, line]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        rights.may(READ, T, "orders")
    assert [(each.levelno, "is Allowed" in each.getMessage()) for each in caplog.records] == [(logging.DEBUG, True)]


def test_the_log_tells_every_read_where_it_wants_to_know(caplog):
    of = authorizer(acl("orders", READ))
    rights = of.rights_of(ALICE, HOST)
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        for _ in range(3):
            rights.may_read("orders")
        rights.may_read("payments")
    assert ["is Allowed" in each for each in caplog.messages] == [True, True, True, False]


NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "ba"])
KINDS = st.sampled_from([T, G])
ENTRIES = st.builds(
    Entry,
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", HOST, "192.0.2.2", "192.0.2.0/31", "192.0.2.0/24"]),
    st.sampled_from([each for each in Operation if each > Operation.ANY]),
    st.sampled_from([ALLOW, DENY]),
)
ACLS = st.lists(st.builds(Acl, st.builds(Pattern, KINDS, NAMES, st.sampled_from([LITERAL, PREFIXED])), ENTRIES))
IMPLIED = {
    READ: DESCRIBE,
    WRITE: DESCRIBE,
    Operation.DELETE: DESCRIBE,
    Operation.ALTER: DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


def model(acls, who, host, operation, kind, name, allow_if_no_acl):
    covering = [
        each
        for each in acls
        if each.pattern.resource_type is kind
        and (
            each.pattern.name in (name, "*")
            if each.pattern.pattern_type is LITERAL
            else name.startswith(each.pattern.name)
        )
    ]
    hosts = {"*", host, "192.0.2.0/24", *(["192.0.2.0/31"] if host == HOST else [])}
    own = [e.entry for e in covering if e.entry.principal in (str(who), "User:*") and e.entry.host in hosts]
    if any(e.permission is DENY and e.operation in (operation, ALL) for e in own):
        return False
    if any(
        e.permission is ALLOW and (e.operation in (operation, ALL) or IMPLIED.get(e.operation) is operation)
        for e in own
    ):
        return True
    return allow_if_no_acl and not covering


@given(
    ACLS,
    st.sampled_from([ALICE, BOB, Principal("Group", "alice")]),
    st.sampled_from([HOST, "192.0.2.2"]),
    KINDS,
    NAMES.filter(lambda name: name != "*"),
    st.booleans(),
)
def test_against_a_model(acls, who, host, kind, name, allow_if_no_acl):
    of = authorizer(*acls, allow_if_no_acl=allow_if_no_acl)
    rights = of.rights_of(who, host)
    for operation in (each for each in Operation if each > ALL):
        expected = model(acls, who, host, operation, kind, name, allow_if_no_acl)
        assert rights.may(operation, kind, name) == expected
        assert rights.may(operation, kind, name) == expected  # as it is remembered
    of.logs_allowed = False
    expected = model(acls, who, host, READ, T, name, allow_if_no_acl)
    assert [rights.may_read(name), rights.may_read(name)] == [expected, expected]


FILTERS = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, T, G, C]),
    st.none() | NAMES,
    st.sampled_from([PatternType.ANY, PatternType.MATCH, LITERAL, PREFIXED]),
    st.sampled_from([None, "User:alice", "User:*", "User:eve"]),
    st.sampled_from([None, "*", HOST]),
    st.sampled_from([Operation.ANY, READ, ALL]),
    st.sampled_from([Permission.ANY, ALLOW, DENY]),
)


@given(ACLS, FILTERS)
def test_filters_against_a_model(acls, wanted):
    def is_meant(each):
        pattern, entry = each
        if wanted.name is None:
            named = wanted.pattern_type in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type)
        elif wanted.pattern_type is PatternType.MATCH:
            named = (
                pattern.name in (wanted.name, "*")
                if pattern.pattern_type is LITERAL
                else wanted.name.startswith(pattern.name)
            )
        else:
            named = pattern.name == wanted.name and wanted.pattern_type in (PatternType.ANY, pattern.pattern_type)
        return (
            named
            and wanted.resource_type in (ResourceType.ANY, pattern.resource_type)
            and wanted.principal in (None, entry.principal)
            and wanted.host in (None, entry.host)
            and wanted.operation in (Operation.ANY, entry.operation)
            and wanted.permission in (Permission.ANY, entry.permission)
        )

    found = {Acl(pattern, entry) for pattern, entry in wanted.found(table(acls)) if entry is not None}
    assert found == {each for each in acls if is_meant(each)}


@given(ACLS, ACLS)
def test_acls_come_and_go(some, others):
    both = added(table(some), table(others))
    assert both == table([*some, *others])
    left = without(both, table(others))
    assert left == table([each for each in some if each not in others])
    assert all(left.values())


def test_long_names_are_not_remembered():
    of = authorizer(acl("*", READ))
    rights = of.rights_of(ALICE, HOST)
    assert rights.may(READ, T, "n" * 10_000)
    assert not rights._decided
    assert rights.may(READ, T, "n" * 100)
    assert len(rights._decided) == 1


def test_a_principal_writes_no_lines_of_its_own(caplog):
    who = Principal("User", "eve\nPrincipal = User:admin is Allowed")
    with caplog.at_level(logging.INFO, logger="kafka.authorizer.logger"):
        assert not may(authorizer(), READ, who=who)
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
