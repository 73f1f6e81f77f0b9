"""Users' names of Kerberos principals: the cases of Kafka's own KerberosNameTest, and any others."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.sasl.kerberos_names import KerberosName, PrincipalNamer, service_of
from kbroker.security.tls.mapping import BadRules, NoRule

REALM = "REALM.COM"
RULES = [
    r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g",
    r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g",
    "DEFAULT",
]


def name_of(principal, *rules, realm=REALM):
    return PrincipalNamer(rules, realm).name_of(principal)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("App.service-name/example.com@REALM.COM", ("App.service-name", "example.com", REALM)),
        ("App.service-name@REALM.COM", ("App.service-name", None, REALM)),
        ("user/host@REALM.COM", ("user", "host", REALM)),
        ("alice", ("alice", None, None)),
        ("alice/host", ("alice/host", None, None)),
    ],
)
def test_a_name_has_parts(text, parts):
    assert KerberosName.parse(text) == parts
    assert service_of(text) == parts[0]


@pytest.mark.parametrize("text", ["a/b/c@REALM", "a@b@c", "a@b/c"])
def test_what_is_no_name(text):
    with pytest.raises(ValueError, match="is no name"):
        KerberosName.parse(text)
    assert service_of(text) == ""
    with pytest.raises(NoRule):
        name_of(text, "DEFAULT")


@pytest.mark.parametrize(
    ("principal", "rules", "name"),
    [
        ("App.service-name/example.com@REALM.COM", RULES, "service-name"),
        ("App.service-name@REALM.COM", RULES, "service-name"),
        ("user/host@REALM.COM", RULES, "user"),
        ("alice", RULES, "alice"),
        ("User@REALM.COM", ["RULE:[1:$1]/L"], "user"),
        ("TestABC/host@FOO.COM", ["RULE:[2:$1](Test.*)s/ABC///L"], "test"),
        ("ABC_User_ABC/host@FOO.COM", ["RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L"], "xyz_user_xyz"),
        ("App.SERVICE-name/example.com@REALM.COM", ["RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g/L"], "service-name"),
        ("User/root@REALM.COM", ["RULE:[2:$1]/L"], "user"),
        ("User@REALM.COM", ["RULE:[1:$1]/U"], "USER"),
        ("TestABC/host@FOO.COM", ["RULE:[2:$1](Test.*)s/ABC///U"], "TEST"),
        ("ABC_User_ABC/host@FOO.COM", ["RULE:[2:$1](ABC.*)s/ABC/XYZ//U"], "XYZ_USER_ABC"),
        ("alice@OTHER.COM", ["RULE:[1:$1.$0](.*\\.OTHER\\.COM)s/\\..*//", "DEFAULT"], "alice"),
        ("HTTP/www@REALM.COM", ["RULE:[2:$2-$1]"], "www-HTTP"),
    ],
)
def test_the_first_rule_that_fits_counts(principal, rules, name):
    assert name_of(principal, *rules) == name


@pytest.mark.parametrize(
    ("principal", "rules"),
    [
        ("alice@OTHER.COM", ["DEFAULT"]),
        ("alice@OTHER.COM", []),
        ("alice/host@REALM.COM", ["RULE:[1:$1]"]),
        ("alice@REALM.COM", ["RULE:[1:$1](bob)"]),
        ("alice@REALM.COM", ["RULE:[1:$1@$0]"]),  # what comes of it is no plain name
        ("a" * 2000, ["DEFAULT"]),
    ],
)
def test_without_a_rule_there_is_no_name(principal, rules):
    with pytest.raises(NoRule):
        name_of(principal, *rules)


@pytest.mark.parametrize(
    "rule",
    [
        "default",
        "DEFAULT/L",
        "RULE:[1:$1]/l",
        "RULE:[2:$1](.*)s/ABC/XYZ/L/g",
        "RULE:[1:$1]/LU",
        "RULE:[:$1]",
        "RULE:[0:$0]",
        "RULE:[1:$2]",
        "RULE:[1:$]",
        "RULE:[1:$1](()",
        "RULE:[1:$1]s/(//",
        "rule:[1:$1]",
        "",
    ],
)
def test_what_is_no_rule(rule):
    with pytest.raises(BadRules):
        PrincipalNamer([rule], REALM)


PART = st.text(st.characters(exclude_characters="/@", codec="utf-8"), max_size=20)


@given(PART, st.none() | PART, PART)
def test_default_is_the_first_part_in_ones_own_realm(service, host, realm):
    text = f"{service}@{realm}" if host is None else f"{service}/{host}@{realm}"
    assert KerberosName.parse(text) == (service, host, realm)
    assert name_of(text, "DEFAULT", realm=realm) == service
    with pytest.raises(NoRule):
        name_of(text, "DEFAULT", realm=f"{realm}x")


@given(st.text(max_size=40), st.lists(st.sampled_from([*RULES, "RULE:[1:$0$1]", "RULE:[2:$1](a.*)s/a/$0$9/"])))
def test_any_name_has_one_user_or_none(principal, rules):
    try:
        found = name_of(principal, *rules)
    except NoRule:
        return
    if re.search("@", principal):
        assert not re.search("[/@]", found)
