"""SASL GSSAPI against a security context of the test's own, and how python-gssapi is asked for a real one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.security.sasl import kerberos
from kbroker.security.sasl.authentication import AuthenticationFailed, Identity
from kbroker.security.sasl.gssapi import MODULE, MOST_BYTES, ContextFailed, GssapiServer
from kbroker.security.sasl.kerberos_names import PrincipalNamer
from kbroker.security.sasl.settings import offers

NAMER = PrincipalNamer(["DEFAULT"], "EXAMPLE.COM")
NO_LAYER = b"\1\0\0\0"


class FakeContext:
    """Accepts ticket 1, ticket 2, ...; `answers` are its tokens. Wrapped data is between brackets."""

    def __init__(self, answers=(b"ap-rep",), initiator="alice/host@EXAMPLE.COM"):
        self._answers = list(answers)
        self._count = 0
        self.initiator = initiator

    @property
    def complete(self):
        return self._count > 0 and not self._answers

    def step(self, token):
        self._count += 1
        if token != b"ticket %d" % self._count or not self._answers:
            raise ContextFailed("Ticket expired")
        return self._answers.pop(0)

    def wrap(self, message):
        return b"<" + message + b">"

    def unwrap(self, message):
        if message[:1] != b"<" or message[-1:] != b">":
            raise ContextFailed("A token had an invalid MIC")
        return message[1:-1]


def server(*answers, initiator="alice/host@EXAMPLE.COM"):
    return GssapiServer(lambda: FakeContext(answers or (b"ap-rep",), initiator), NAMER.name_of)


def test_a_ticket_makes_somebody_its_principal():
    one = server()
    assert one.respond(b"ticket 1") == b"ap-rep"
    assert one.identity is None
    assert one.respond(b"") == b"<\1\0\0\0>"
    assert one.identity is None
    assert one.respond(b"<\1\0\0\0alice/host@EXAMPLE.COM>") == b""
    assert one.identity == Identity("alice")
    with pytest.raises(AuthenticationFailed):
        one.respond(b"<\1\0\0\0>")


def test_a_context_may_have_several_tokens_or_none_at_its_end():
    one = server(b"more", b"")
    assert one.respond(b"ticket 1") == b"more"
    assert one.respond(b"ticket 2") == b"<\1\0\0\0>"
    assert one.respond(b"<\1\0\0\0>") == b""
    assert one.identity == Identity("alice")


@pytest.mark.parametrize(
    "messages",
    [
        [b""],
        [b"another's ticket"],
        [b"x" * (MOST_BYTES + 1)],
        [b"ticket 1", b"ticket 2"],
        [b"ticket 1", b"", b"\1\0\0\0"],
        [b"ticket 1", b"", b"<>"],
        [b"ticket 1", b"", b"<\1\0\0>"],
        [b"ticket 1", b"", b"<\2\0\0\0>"],
        [b"ticket 1", b"", b"<\4\0\xff\xff>"],
        [b"ticket 1", b"", b"<\1\0\0\0>", b""],
    ],
)
def test_what_does_not_go_on_is_the_end(messages):
    one = server()
    for message in messages[:-1]:
        one.respond(message)
    with pytest.raises(AuthenticationFailed) as failed:
        one.respond(messages[-1])
    assert failed.value.client_message is None
    with pytest.raises(AuthenticationFailed):
        one.respond(b"ticket 1")


def test_a_principal_whom_no_rule_fits_is_not_let_in():
    for initiator in ("alice@OTHER.COM", "a/b/c@EXAMPLE.COM", "@EXAMPLE.COM"):
        one = server(initiator=initiator)
        one.respond(b"ticket 1")
        one.respond(b"")
        with pytest.raises(AuthenticationFailed):
            one.respond(b"<\1\0\0\0>")
        assert one.identity is None


def test_tokens_without_end_have_one():
    one = server(*[b"more"] * 100)
    for number in range(1, 11):
        assert one.respond(b"ticket %d" % number) == b"more"
    with pytest.raises(AuthenticationFailed, match="no end"):
        one.respond(b"ticket 11")


@given(st.lists(st.sampled_from([b"ticket 1", b"ticket 2", b"", b"<\1\0\0\0>", b"<\2\0\0\0>", b"x"]), max_size=6))
def test_no_sequence_lets_anybody_in_without_a_ticket(messages):
    one = server()
    taken = []
    for message in messages:
        try:
            one.respond(message)
        except AuthenticationFailed:
            break
        taken.append(message)
    assert (one.identity is not None) == (taken == [b"ticket 1", b"", b"<\1\0\0\0>"])


class GSSError(Exception):
    pass


class FakeLibrary:
    """The part of python-gssapi that is used."""

    exceptions = SimpleNamespace(GSSError=GSSError)
    NameType = SimpleNamespace(kerberos_principal="krb5")

    def __init__(self):
        self.asked = []

    def Name(self, text, kind):  # noqa: N802 - the library's
        assert kind == "krb5"
        return text

    def Credentials(self, name, usage, store):  # noqa: N802
        self.asked.append((name, usage, store))
        if "nobody" in name:
            raise GSSError("No key table entry found for\n nobody")
        return name

    def SecurityContext(self, creds, usage):  # noqa: N802
        assert usage == "accept"
        context = FakeContext()
        outer = SimpleNamespace(complete=False, initiator_name=context.initiator)

        def step(token):
            try:
                answer = context.step(token)
            except ContextFailed as failed:
                raise GSSError(str(failed)) from None
            outer.complete = context.complete
            return answer or None

        outer.step = step
        outer.wrap = lambda message, encrypt: SimpleNamespace(message=context.wrap(message), encrypted=encrypt)
        outer.unwrap = lambda message: SimpleNamespace(message=context.unwrap(message), encrypted=False)
        return outer


@pytest.fixture
def library(monkeypatch):
    found = FakeLibrary()
    monkeypatch.setattr(kerberos, "import_module", lambda name: {"gssapi": found}[name])
    monkeypatch.setattr(kerberos, "default_realm", lambda: "EXAMPLE.COM")
    return found


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "kafka.keytab"
    path.write_bytes(b"\5\2")
    return path


def settings(options, **more):
    return BrokerConfig(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": f"{MODULE} required {options};",
            "sasl.kerberos.service.name": "kafka",
            **{name.replace("_", "."): value for name, value in more.items()},
        },
        strict=True,
    )


def good(keys, principal="kafka/broker.example.com@EXAMPLE.COM"):
    return f'useKeyTab=true storeKey=true keyTab="{keys}" principal="{principal}"'


def test_a_listener_offers_it_with_the_key_of_its_service(library, keys):
    (offer,) = offers(settings(good(keys))).values()
    store = {"keytab": f"FILE:{keys}"}
    assert library.asked == [("kafka/broker.example.com@EXAMPLE.COM", "accept", store)]
    one = offer.begin["GSSAPI"]()
    assert one.respond(b"ticket 1") == b"ap-rep"
    assert one.respond(b"") == b"<\1\0\0\0>"
    one.respond(b"<\1\0\0\0>")
    assert one.identity == Identity("alice")
    other = offer.begin["GSSAPI"]()
    with pytest.raises(AuthenticationFailed, match="Ticket expired"):
        other.respond(b"x")


def test_rules_are_those_of_the_listener(library, keys):
    config = settings(good(keys), sasl_kerberos_principal_to_local_rules="RULE:[2:$2-$1]/U,DEFAULT")
    one = offers(config)["SASL_PLAINTEXT"].begin["GSSAPI"]()
    for message in (b"ticket 1", b"", b"<\1\0\0\0>"):
        one.respond(message)
    assert one.identity == Identity("HOST-ALICE")


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ("useKeyTab=true", {}, "has to have useKeyTab=true"),
        ('keyTab="{keys}" principal="kafka/x@EXAMPLE.COM"', {}, "has to have useKeyTab=true"),
        ('useKeyTab=true keyTab="/not/there" principal="kafka/x@EXAMPLE.COM"', {}, "No such file"),
        ('useKeyTab=true keyTab="{keys}" principal="nobody/x@EXAMPLE.COM"', {}, "No key table entry found for nobody"),
        ('useKeyTab=true keyTab="{keys}" principal="http/x@EXAMPLE.COM"', {}, "different service names"),
        ('useKeyTab=true keyTab="{keys}" principal="kafka/x@E" serviceName="http"', {}, "different service names"),
        ('useKeyTab=true keyTab="{keys}" principal="kafka/x@E@F"', {}, "different service names"),
        (
            'useKeyTab=true keyTab="{keys}" principal="kafka/x@EXAMPLE.COM"',
            {"sasl_kerberos_service_name": ""},
            "sasl.kerberos.service.name is missing",
        ),
        (
            'useKeyTab=true keyTab="{keys}" principal="kafka/x@EXAMPLE.COM"',
            {"sasl_kerberos_principal_to_local_rules": "DEFAULT,nonsense"},
            "'nonsense' is neither DEFAULT nor RULE",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(library, keys, options, more, said):
    with pytest.raises(ConfigError) as refused:
        offers(settings(options.replace("{keys}", str(keys)), **more))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_login_module_is_refused(library):
    config = BrokerConfig(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": "a.B required;",
        }
    )
    with pytest.raises(ConfigError, match="the login module of GSSAPI is"):
        offers(config)


def test_without_the_extra_the_start_is_refused(monkeypatch, keys):
    def missing(_name):
        raise ImportError("No module named 'gssapi'")

    monkeypatch.setattr(kerberos, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install .\.\[gssapi\]") as refused:
        offers(settings(good(keys)))
    assert "\n" not in str(refused.value)


def test_the_realm_is_that_of_krb5_conf(tmp_path, monkeypatch):
    path = tmp_path / "krb5.conf"
    path.write_text("[realms]\n default_realm = NOT.THIS\n[libdefaults]\n  # x\n default_realm = EXAMPLE.COM # y\n")
    monkeypatch.setenv("KRB5_CONFIG", f"{tmp_path}/none:{path}")
    assert kerberos.default_realm() == "EXAMPLE.COM"
    monkeypatch.setenv("KRB5_CONFIG", f"{tmp_path}/none")
    assert kerberos.default_realm() == ""
