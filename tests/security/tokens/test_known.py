"""The existing delegation tokens, compared with a plain dictionary."""

from __future__ import annotations

from time import perf_counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.principal import Principal
from kbroker.security.tokens.known import NO_TOKENS, Tokens
from kbroker.security.tokens.token import TokenInformation, TokenSettings

SETTINGS = TokenSettings(b"secret", 1000, 100, 10)


def token(token_id, requester="alice", expires=100):
    user = Principal("User", requester)
    return SETTINGS.token(TokenInformation(token_id, Principal("User", "owner"), user, (), 0, 1000, expires))


IDS = st.sampled_from(["a", "b", "zoë", "", "\udc80", *(f"id{number}" for number in range(20))])
STEPS = st.lists(st.tuples(IDS, st.sampled_from(["alice", "bob", None]), st.integers(0, 9)))


@given(STEPS)
def test_they_are_what_a_dictionary_has(steps):
    known, model, before = NO_TOKENS, {}, []
    for token_id, requester, expires in steps:
        before.append((known, dict(model)))
        if requester is None:
            known = known.without(token_id)
            model.pop(token_id, None)
        elif token_id.isprintable():  # what cannot be UTF-8 is never made, and may be asked for
            known = known.with_token(token(token_id, requester, expires))
            model[token_id] = token(token_id, requester, expires)
    for value, expected in [*before, (known, model), (Tokens.of(model.values()), model)]:
        assert len(value) == len(expected)
        assert {each.info.token_id: each for each in value} == expected
        for requester in ("alice", "bob", "owner"):
            count = sum(each.info.requester.name == requester for each in expected.values())
            assert value.asked_for_by(Principal("User", requester)) == count
        for token_id, _, _ in steps:
            assert value.get(token_id) == expected.get(token_id)
            if token_id.isprintable():
                assert value.by_hmac(token(token_id).hmac) == expected.get(token_id)
        assert value.by_hmac(b"") is value.by_hmac(b"x") is value.by_hmac(bytes(64)) is None


def test_a_change_costs_nothing_however_many_there_are():
    def seconds(known):
        began = perf_counter()
        for number in range(100):
            known = known.with_token(token(f"new{number}")).without(f"new{number}")
        return perf_counter() - began

    few, many = (Tokens.of(token(str(number)) for number in range(count)) for count in (100, 20_000))
    assert len(many) == 20_000
    assert min(seconds(many) for _ in range(5)) < 20 * min(seconds(few) for _ in range(5))


def test_no_secret_is_shown():
    one = token("id")
    assert one.password not in repr(one)
    assert repr(one.hmac) not in repr((one, Tokens.of([one])))
    assert "secret'" not in repr(SETTINGS)
