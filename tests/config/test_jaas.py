"""JAAS login configurations as Java reads them."""

from __future__ import annotations

import pytest

from kbroker.config.jaas import JaasError, LoginModule, parse_jaas

DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"


def test_sections_have_modules_with_options() -> None:
    text = f"""
    // for ZooKeeper
    Client {{
        {DIGEST} required
        username="kafka"
        password="a \\"b\\" // c";  /* the
        end */
    }};
    KafkaServer {{ x.Y Optional debug=true; x.Z sufficient; }};
    """
    assert parse_jaas(text) == {
        "Client": [LoginModule(DIGEST, {"username": "kafka", "password": 'a "b" // c'})],
        "KafkaServer": [LoginModule("x.Y", {"debug": "true"}), LoginModule("x.Z", {})],
    }
    assert parse_jaas(" ") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Client {", "at the end the class of a login module is missing"),
        ("Client\n{ x.Y required; }", "at the end ; is missing"),
        ("Client {};", "line 1: the class of a login module is missing"),
        ("Client {\n x.Y needed; };", "line 2: needed is none of required"),
        ("Client { x.Y required a; };", "line 1: = is missing"),
        ("Client { x.Y required a=; };", "line 1: the value of a is missing"),
        ('Client { x.Y required a="b; };', "line 1: a quotation mark is not closed"),
        ('Client { x.Y required a="${user.name}"; };', "line 1: a has a variable"),
        ("A { x.Y required; };\nA { x.Y required; };", "line 2: there are two sections A"),
        ("= { x.Y required; };", "line 1: the name of a section is missing"),
    ],
)
def test_what_is_none_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(JaasError) as wrong:
        parse_jaas(text)
    assert str(wrong.value).startswith(said)
