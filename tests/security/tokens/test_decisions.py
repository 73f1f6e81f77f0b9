"""The life of a delegation token: the rules of DelegationTokenControlManager, with the test's own clock."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest

from kbroker.config.server_config import BrokerConfig
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.principal import Principal
from kbroker.security.tokens.decisions import MOST_CHARACTERS, MOST_OF_ONE, MOST_RENEWERS, ended, new_token, renewed
from kbroker.security.tokens.known import NO_TOKENS, Tokens
from kbroker.security.tokens.token import TokenInformation, TokenSettings, token_settings

OWNER, REQUESTER, RENEWER, OTHER = (Principal("User", name) for name in ("owner", "requester", "renewer", "other"))
SETTINGS = TokenSettings(b"secret", max_lifetime_ms=1000, expiry_time_ms=100, check_interval_ms=10)
NOW = 1_700_000_000_000
FOR_EVER = (1 << 63) - 1


def new(lifetime=-1, settings=SETTINGS, now=NOW, renewers=(RENEWER,), known=NO_TOKENS):
    return new_token(settings, known, OWNER, REQUESTER, renewers, lifetime, now)


def code_of(call, *args):
    with pytest.raises(ApiError) as raised:
        call(*args)
    return raised.value.code


@pytest.mark.parametrize(
    ("lifetime", "last", "expires"), [(-1, 1000, 100), (0, 1000, 100), (50, 50, 50), (500, 500, 100), (9999, 1000, 100)]
)
def test_how_long_a_new_one_lasts(lifetime, last, expires):
    info = new(lifetime).info
    assert (info.issued_ms, info.max_ms, info.expires_ms) == (NOW, NOW + last, NOW + expires)
    assert (info.owner, info.requester, info.renewers) == (OWNER, REQUESTER, (RENEWER,))
    assert re.fullmatch(r"[\w][\w-]{21}", info.token_id)


def test_times_end_where_numbers_do():
    info = new(FOR_EVER, TokenSettings(b"x", FOR_EVER, FOR_EVER, 1)).info
    assert (info.max_ms, info.expires_ms) == (FOR_EVER, FOR_EVER)


def test_the_hmac_is_of_the_id_by_the_secret():
    one = new()
    assert one.hmac == hmac.new(b"secret", one.info.token_id.encode(), hashlib.sha512).digest()
    assert base64.b64decode(one.password) == one.hmac
    assert new().info.token_id != one.info.token_id


def test_renewers_are_users_and_names_are_not_endless():
    assert code_of(new, -1, SETTINGS, NOW, [Principal("Group", "x")]) == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert code_of(new, -1, SETTINGS, NOW, [Principal("User", "x" * MOST_CHARACTERS)]) == ErrorCode.POLICY_VIOLATION
    assert new(renewers=[RENEWER] * MOST_RENEWERS)
    assert code_of(new, -1, SETTINGS, NOW, [RENEWER] * (MOST_RENEWERS + 1)) == ErrorCode.POLICY_VIOLATION


def test_one_requester_has_no_more_than_so_many():
    def info(number, who):
        return TokenInformation(str(number), OWNER, who, (), 0, 1, 1)

    many = Tokens.of(SETTINGS.token(info(number, REQUESTER)) for number in range(MOST_OF_ONE))
    assert code_of(new, -1, SETTINGS, NOW, (), many) == ErrorCode.POLICY_VIOLATION
    assert new(known=many.without("0"))
    others = Tokens.of(SETTINGS.token(info(number, OTHER)) for number in range(MOST_OF_ONE))
    assert new(known=others)


@pytest.mark.parametrize(("period", "expires"), [(-1, 150), (0, 150), (20, 70), (9999, 150)])
@pytest.mark.parametrize("who", [OWNER, RENEWER])
def test_it_is_renewed_for_a_while(who, period, expires):
    one = new(settings=TokenSettings(b"secret", 1000, 100, 10))
    assert renewed(SETTINGS, one, who, period, NOW + 50).info.expires_ms == NOW + expires
    short = new(120)
    assert renewed(SETTINGS, short, who, -1, NOW + 50).info.expires_ms == NOW + 120


def test_it_is_renewed_by_nobody_else_and_not_once_it_has_ended():
    one = new()
    for who in (REQUESTER, OTHER, Principal("user", "owner")):
        assert code_of(renewed, SETTINGS, one, who, -1, NOW) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert code_of(ended, one, who, -1, NOW) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert not one.has_ended(NOW + 100)
    assert one.has_ended(NOW + 101)
    assert code_of(renewed, SETTINGS, one, OTHER, -1, NOW + 101) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert code_of(ended, one, OWNER, 5, NOW + 101) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert code_of(ended, one, OTHER, 5, NOW + 101) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert ended(one, OWNER, -1, NOW + 101) is None


@pytest.mark.parametrize("who", [OWNER, RENEWER])
def test_it_ends_at_once_or_after_a_while_and_never_later_than_it_may(who):
    one = new(120)
    assert ended(one, who, -1, NOW) is None
    assert ended(one, who, 0, NOW).info.expires_ms == NOW
    assert ended(one, who, 110, NOW).info.expires_ms == NOW + 110
    assert ended(one, who, FOR_EVER, NOW).info.expires_ms == NOW + 120
    assert ended(one, who, 1, NOW).hmac == one.hmac


def test_who_has_to_do_with_it():
    one = new()
    for each, holds in ((OWNER, True), (REQUESTER, True), (RENEWER, True), (OTHER, False)):
        assert one.is_of({each}) is holds
        assert one.is_of([OTHER, each]) is holds
    assert not one.is_of(())


def test_what_is_configured():
    assert token_settings(BrokerConfig({})) is None
    assert token_settings(BrokerConfig({"delegation.token.secret.key": ""})) is None
    found = token_settings(
        BrokerConfig(
            {
                "delegation.token.secret.key": "s3cret",
                "delegation.token.max.lifetime.ms": "10",
                "delegation.token.expiry.time.ms": "9",
                "delegation.token.expiry.check.interval.ms": "8",
            },
            strict=True,
        )
    )
    assert (found.secret, found.max_lifetime_ms, found.expiry_time_ms, found.check_interval_ms) == (b"s3cret", 10, 9, 8)
    cluster = {"zookeeper.connect": "127.0.0.1:1", "broker.id": "1", "delegation.token.master.key": "old"}
    assert token_settings(BrokerConfig(cluster)).secret == b"old"
    assert token_settings(BrokerConfig({**cluster, "delegation.token.secret.key": "new"})).secret == b"new"
    assert token_settings(BrokerConfig({"delegation.token.master.key": "old"})) is None
