"""The rules that turn a certificate's name into a principal's: KIP-371, with the cases of Kafka's own test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.tls.mapping import BadRules, NoRule, PrincipalMapper

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_fits_counts(name: str, principal: str) -> None:
    assert PrincipalMapper(RULES).name_of(name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:^CN=((/$1/",
    ],
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(BadRules):
        PrincipalMapper(rules)


def test_a_rule_must_fit_the_whole_name_and_without_one_there_is_no_principal() -> None:
    mapper = PrincipalMapper("RULE:CN=([a-z]*)/$1/")
    assert mapper.name_of("CN=alice") == "alice"
    with pytest.raises(NoRule, match="CN=alice,O=Example"):
        mapper.name_of("CN=alice,O=Example")


def test_commas_and_escapes_belong_to_a_pattern() -> None:
    mapper = PrincipalMapper(r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT")
    assert mapper.name_of(r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz") == r"Tkac\, Adam"


@pytest.mark.parametrize(
    ("replacement", "result"), [("$1@$2", "a@$2"), ("$12", "a2"), (r"\$1", "$1"), ("x$0", "xCN=a"), ("", "")]
)
def test_a_group_that_there_is_not_stands_for_itself(replacement: str, result: str) -> None:
    assert PrincipalMapper(f"RULE:^CN=(.*)$/{replacement}/").name_of("CN=a") == result


@given(st.text("RULEDFAT:/,$1\\.* ()[]", max_size=30), st.text(max_size=30))
def test_any_text_is_rules_or_refused(rules: str, name: str) -> None:
    try:
        mapper = PrincipalMapper(rules)
        mapper.name_of(name)
    except (BadRules, NoRule):
        pass
