"""SASL OAUTHBEARER: its messages, the checks of tokens, and the source of the keys that sign them."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import threading
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.security.sasl.authentication import AuthenticationFailed, Identity
from kbroker.security.sasl.key_set import MISS_PAUSE_MS, BadKeySet, KeySet, parse_keys, reader
from kbroker.security.sasl.oauthbearer import MODULE, MOST_BYTES, BadToken, OAuthBearerServer
from kbroker.security.sasl.settings import Credentials, offers
from kbroker.security.sasl.signed_tokens import Expected, signed
from kbroker.security.sasl.unsecured_tokens import are_enabled, unsecured

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def jwk(key, key_id, **more):
    kind = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    algorithm = next((each for cls, each in kind.items() if isinstance(key, cls)), OKPAlgorithm)
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, **more}


KEYS = {"keys": [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed"), jwk(OTHER, "encrypts", use="enc")]}


class Held:
    """Keys that are all there is."""

    def __init__(self, value=KEYS):
        self._keys = parse_keys(json.dumps(value).encode())
        self.missed = []

    def known(self):
        return self._keys

    def miss(self, key_id):
        self.missed.append(key_id)


def claims(**changes):
    now = int(time.time())
    made = {"sub": "alice", "iat": now, "exp": now + 600, "iss": "https://issuer", "aud": "kafka", "scope": ["a", "b"]}
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def token(key=RSA, algorithm="RS256", key_id="rsa", **changes):
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": key_id} if key_id else {})


EXPECTED = Expected("https://issuer", ("kafka", "other"), "sub", "scope", 30)


def judge(text, expected=EXPECTED, keys=None):
    return signed(keys or Held(), expected)(text)


# --- messages


def accept(_token):
    return Identity("alice", 5000)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer abc.d-e_f.g\x01\x01",
        b"n,a=alice,\x01auth=bearer abc=\x01\x01",
        b"n,,\x01traceId=1 2\x01auth=BEARER  abc\x01other=x\x01\x01",
    ],
)
def test_a_token_that_is_good(message):
    server = OAuthBearerServer(accept)
    assert server.respond(message) == b""
    assert server.identity == Identity("alice", 5000)
    with pytest.raises(AuthenticationFailed):
        server.respond(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01other=x\x01\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer abc\x011=x\x01\x01",
        b"n,,\x01auth=Bearer abc\x01other\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"n,alice,\x01auth=Bearer abc\x01\x01",
        b"n,a=bob,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer a\xffc\x01\x01",
        b"n,,\x01auth=Bearer abc\x01" + b"".join(b"x%s=y\x01" % (b"x" * each) for each in range(200)) + b"\x01",
    ],
)
def test_what_is_no_message(message):
    server = OAuthBearerServer(accept)
    with pytest.raises(AuthenticationFailed) as failed:
        server.respond(message)
    assert server.identity is None
    assert "abc" not in str(failed.value)


def refuse(_token):
    raise BadToken("the token has expired")


@pytest.mark.parametrize(("answer", "told"), [(b"\x01", '{"status":"invalid_token"}'), (b"", None), (b"x", None)])
def test_a_bad_token_is_answered_and_then_it_has_failed(answer, told):
    server = OAuthBearerServer(refuse)
    assert json.loads(server.respond(b"n,,\x01auth=Bearer abc\x01\x01")) == {"status": "invalid_token"}
    with pytest.raises(AuthenticationFailed) as failed:
        server.respond(answer)
    assert failed.value.client_message == told
    server._validate = accept
    with pytest.raises(AuthenticationFailed):
        server.respond(b"n,,\x01auth=Bearer abc\x01\x01")
    assert server.identity is None


@given(st.lists(st.one_of(st.binary(max_size=50), st.just(b"\x01"), st.just(b"n,,\x01auth=Bearer a.b.c\x01\x01"))))
def test_no_sequence_lets_anybody_in_without_a_good_token(messages):
    server = OAuthBearerServer(lambda text: judge(text, keys=Held({"keys": []})))
    for message in messages:
        try:
            server.respond(message)
        except AuthenticationFailed:
            continue
    assert server.identity is None


# --- signed tokens


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(RSA, "RS256", "rsa"), (RSA, "PS512", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed"), (RSA, "RS256", None)],
)
def test_a_token_that_is_signed_by_a_known_key(key, algorithm, key_id):
    found = judge(token(key, algorithm, key_id))
    assert found.name == "alice"
    assert abs(found.expires_ms - (time.time() + 600) * 1000) < 5000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "a.b",
        "a.b.c.d",
        "..",
        token()[:-4],
        token().rsplit(".", 1)[0] + ".",
        token(OTHER),
        token(OTHER, key_id=None),
        token(OTHER, key_id="encrypts"),
        token(EC, "ES256", "rsa"),
        token(RSA, "RS256", "unknown"),
        jwt.encode(claims(), None, "none"),
        jwt.encode(claims(), None, "none", headers={"kid": "rsa"}),
        jwt.encode(claims(), "a secret of thirty two characters", "HS256", headers={"kid": "rsa"}),
        token(exp=int(time.time()) - 31),
        token(exp=None),
        token(iat=None),
        token(iat=int(time.time()) + 3600),
        token(nbf=int(time.time()) + 3600),
        token(iss="https://other"),
        token(iss=None),
        token(aud="else"),
        token(aud=None),
        token(sub=None),
        token(sub=" "),
        token(scope=[1]),
        token(scope=[""]),
        token(exp="soon"),
        "e30" * 30_000 + ".e30.e30",
        base64.urlsafe_b64encode(b"[" * 100_000).decode().rstrip("=") + ".e30.e30",
    ],
)
def test_a_token_that_is_not_good(text):
    with pytest.raises(BadToken) as bad:
        judge(text)
    assert bad.value.status == "invalid_token"
    assert not text or text not in str(bad.value)


def test_clocks_may_differ():
    assert judge(token(exp=int(time.time()) - 20)).name == "alice"
    assert judge(token(iat=int(time.time()) + 20)).name == "alice"


def test_claims_may_have_other_names():
    expected = Expected(None, (), "preferred_username", "scp", 0)
    text = token(aud=None, iss=None, preferred_username=" bob ", scp="a b")
    assert judge(text, expected).name == "bob"


def test_without_an_expected_audience_any_is_taken():
    assert judge(token(), Expected(None, (), "sub", "scope", 0)).name == "alice"


def test_a_key_that_is_bound_to_an_algorithm_is_good_for_no_other():
    keys = Held({"keys": [jwk(RSA, "rsa", alg="RS256")]})
    assert judge(token(), keys=keys).name == "alice"
    with pytest.raises(BadToken):
        judge(token(algorithm="PS256"), keys=keys)


def test_only_a_key_that_could_be_is_looked_for():
    keys = Held()
    for text in (token(key_id="new"), jwt.encode(claims(), None, "none", headers={"kid": "new"})):
        with pytest.raises(BadToken):
            judge(text, keys=keys)
    assert keys.missed == ["new"]


# --- where keys come from


class Source:
    """What keys are read from, when somebody says so."""

    def __init__(self, **settings):
        self.ms = 0.0
        self.value = json.dumps(KEYS).encode()
        self.reads = 0
        self.waiting = []
        options = {"refresh_ms": 1000, "retry_ms": 100, "max_retry_ms": 300, **settings}
        self.keys = KeySet(self._read, lambda: self.ms, **options, start=self.waiting.append)

    def _read(self):
        self.reads += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def run(self):
        while self.waiting:
            self.waiting.pop()()


def test_keys_are_read_again_after_their_time_and_used_meanwhile():
    source = Source()
    assert source.keys.known() == ()
    source.run()
    assert len(source.keys.known()) == 3
    source.ms = 999
    source.keys.known()
    assert not source.waiting
    source.ms = 1000
    source.value = json.dumps({"keys": [jwk(RSA, "x")]}).encode()
    assert len(source.keys.known()) == 3
    assert len(source.waiting) == 1
    source.keys.known()
    assert len(source.waiting) == 1
    source.run()
    known = source.keys.known()
    assert [each.key_id for each in known] == ["x"]


@pytest.mark.parametrize(
    "wrong",
    [
        OSError("away"), http.client.BadStatusLine("?"), http.client.IncompleteRead(b""), RuntimeError("?"),
        b"", b"[]", b"{}", b'{"keys":1}', b"[" * 100_000, b"\xff",
    ],
)  # fmt: skip
def test_what_cannot_be_read_leaves_what_is_known_and_is_tried_again_ever_later(wrong):
    source = Source()
    source.keys.known()
    source.run()
    source.value, source.ms = wrong, 1000
    tried = []
    for ms in range(1000, 3000, 50):
        source.ms = ms
        assert len(source.keys.known()) == 3
        if source.waiting:
            tried.append(ms)
            source.run()
    assert tried[:6] == [1000, 1100, 1300, 1600, 1900, 2200]


def test_tokens_with_unknown_keys_have_them_read_no_more_often_than_once_in_a_while():
    source = Source(refresh_ms=10**9)
    source.keys.known()
    source.run()
    for number in range(1000):
        source.keys.miss(f"unknown {number}")
        source.run()
    assert source.reads == 2
    source.ms += MISS_PAUSE_MS
    source.keys.miss("unknown")
    source.run()
    assert source.reads == 3


def test_keys_of_unknown_kinds_and_those_that_are_none_are_passed_over():
    listed = [1, {}, {"kty": "oct", "k": "AAAA"}, {"kty": "RSA"}, {"kty": "EC", "crv": "x"}, jwk(RSA, "rsa")]
    assert [each.key_id for each in parse_keys(json.dumps({"keys": listed}).encode())] == ["rsa"]


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/keys" else 404)
        self.end_headers()
        self.wfile.write(json.dumps(KEYS).encode() if self.path == "/keys" else b"x" * 3_000_000)

    def log_message(self, *_):
        pass


def test_keys_come_from_the_web_and_from_files(tmp_path):
    path = tmp_path / "a key set.json"
    path.write_text(json.dumps(KEYS))
    assert len(parse_keys(reader(path.as_uri())())) == 3
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    try:
        where = f"http://127.0.0.1:{server.server_port}"
        assert len(parse_keys(reader(f"{where}/keys")())) == 3
        with pytest.raises(OSError):
            reader(f"{where}/other")()
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(OSError):
        reader(f"{where}/keys")()
    path.write_bytes(b"x" * 3_000_000)
    with pytest.raises(BadKeySet):
        reader(path.as_uri())()


@pytest.mark.parametrize("url", ["", "keys.json", "ftp://host/x", "file://other/x", "http://", "data:,x"])
def test_other_urls_are_none(url):
    with pytest.raises(ValueError):
        reader(url)


# --- unsigned tokens


def unsigned(**changes):
    parts = [{"alg": changes.pop("alg", "none")}, claims(**changes)]
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts) + "."


def now_ms():
    return int(time.time() * 1000)


def test_an_unsigned_token_is_taken_where_it_is_asked_for():
    found = unsecured({}, now_ms)(unsigned())
    assert found.name == "alice"
    other = {
        "unsecuredValidatorPrincipalClaimName": "who",
        "unsecuredValidatorScopeClaimName": "scp",
        "unsecuredValidatorRequiredScope": "x y",
        "unsecuredValidatorAllowableClockSkewMs": "3000",
    }
    validate = unsecured(other, now_ms)
    assert validate(unsigned(who="bob", scp="y x z", exp=int(time.time()) - 1, iat=None)).name == "bob"
    with pytest.raises(BadToken) as bad:
        validate(unsigned(who="bob", scp="x"))
    assert (bad.value.status, bad.value.scope) == ("insufficient_scope", "x y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "a.b.c",
        token(),
        token().rsplit(".", 1)[0] + ".",
        unsigned(alg="RS256"),
        unsigned(sub=None),
        unsigned(sub=1),
        unsigned(exp=None),
        unsigned(exp=1),
        unsigned(exp="x"),
        unsigned(exp=True),
        unsigned(exp=1e300),
        unsigned(iat=time.time() + 3600),
        unsigned(iat=2000000000, exp=1999999999),
        "e30." + base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".",
    ],
)
def test_an_unsigned_token_that_is_not_good(text):
    with pytest.raises(BadToken):
        unsecured({}, now_ms)(text)


# --- settings

LISTENER = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{MODULE} required;",
}
HANDLER = "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class"


def nobody(_name, _mechanism):
    return None


UNVERIFIED = {f"sasl.oauthbearer.allow.unverified.{claim}": "true" for claim in ("audience", "issuer")}


def test_nothing_unsigned_is_taken_unless_it_is_asked_for(tmp_path):
    assert not are_enabled({})
    assert are_enabled({"unsecuredValidatorPrincipalClaimName": "sub"})
    with pytest.raises(ConfigError, match="the keys that sign tokens are unknown"):
        offers(BrokerConfig(LISTENER))
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(KEYS))
    settings = {
        **LISTENER,
        "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.allow.unverified.issuer": "true",
        HANDLER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    }
    offer = offers(BrokerConfig(settings, strict=True), Credentials(nobody, nobody))["SASL_PLAINTEXT"]

    def says(text):
        return offer.begin["OAUTHBEARER"]().respond(f"n,,\x01auth=Bearer {text}\x01\x01".encode())

    deadline = time.monotonic() + 10
    while says(token()):  # until the keys are read
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert json.loads(says(unsigned())) == {"status": "invalid_token"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": "keys.json"}, "not a URL"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:///does/not/exist"}, "cannot be used"),
        ({HANDLER: "my.Handler"}, "runs no Java class"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(settings, said):
    with pytest.raises(ConfigError, match=said) as refused:
        offers(BrokerConfig({**LISTENER, **UNVERIFIED, **settings}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("claim", ["audience", "issuer"])
def test_tokens_of_anybody_and_for_anybody_are_taken_only_where_that_is_allowed(tmp_path, claim):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(KEYS))
    settings = {**LISTENER, **UNVERIFIED, "sasl.oauthbearer.jwks.endpoint.url": path.as_uri()}
    unverified = f"sasl.oauthbearer.allow.unverified.{claim}"
    for wrong in ({unverified: "false"}, {unverified: "false", f"sasl.oauthbearer.expected.{claim}": ""}):
        with pytest.raises(ConfigError, match=f"expected.{claim} is not set; set it, or {unverified}=true"):
            offers(BrokerConfig({**settings, **wrong}))
    for right in ({}, {unverified: "false", f"sasl.oauthbearer.expected.{claim}": "kafka"}):
        offers(BrokerConfig({**settings, **right}))


def test_a_thread_that_cannot_be_had_is_asked_for_again():
    def refuse(_work):
        raise RuntimeError("can't start new thread")

    source = Source()
    keys = KeySet(source._read, lambda: source.ms, 1000, 100, 300, start=refuse)
    assert keys.known() == ()
    keys._start = source.waiting.append
    source.ms = 99
    assert keys.known() == ()
    assert not source.waiting
    source.ms = 100
    keys.known()
    source.run()
    assert len(keys.known()) == 3


def test_a_message_of_hundreds_of_kilobytes_is_not_looked_at():
    asked = []
    server = OAuthBearerServer(asked.append)
    with pytest.raises(AuthenticationFailed, match="a message of"):
        server.respond(b"n,,\x01auth=Bearer " + b"a" * (MOST_BYTES + 1) + b"\x01\x01")
    assert asked == []
