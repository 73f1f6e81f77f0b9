"""The stored form of delegation tokens: Apache Kafka 3.9's JSON, and a single node's store."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.token_nodes import decode_token, encode_token, load_tokens
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.long_work import whole
from kbroker.security.principal import Principal
from kbroker.security.tokens.known import NO_TOKENS
from kbroker.security.tokens.token import TokenInformation, TokenSettings

SETTINGS = TokenSettings(b"secret", 1000, 100, 10)
ALICE, BOB = Principal("User", "alice"), Principal("User", "b o*b/,:~ö")
INFO = TokenInformation("tYq1xQZkTVOXLCqFOxJd-w", ALICE, BOB, (BOB, ALICE), 1, 3, 2)
KAFKAS = (
    '{"version":3,"owner":"User%3Aalice","tokenRequester":"User%3Ab%20o%2Ab%2F%2C%3A%7E%C3%B6",'
    '"renewers":["User%3Ab%20o%2Ab%2F%2C%3A%7E%C3%B6","User%3Aalice"],"issueTimestamp":1,"maxTimestamp":3,'
    '"expiryTimestamp":2,"tokenId":"tYq1xQZkTVOXLCqFOxJd-w"}'
)


def test_they_look_as_kafka_writes_them():
    assert encode_token(INFO) == json.loads(KAFKAS)
    assert decode_token(json.loads(KAFKAS)) == INFO


@pytest.mark.parametrize("version", [1, 2])
def test_those_of_older_brokers_are_asked_for_by_their_owners(version):
    value = {**json.loads(KAFKAS), "version": version}
    del value["tokenRequester"]
    assert decode_token(value).requester == ALICE


NAMES = st.builds(Principal, st.just("User"), st.text(st.characters(exclude_categories=["Cs"])))


@given(st.builds(TokenInformation, st.text(), NAMES, NAMES, st.lists(NAMES).map(tuple), *[st.integers()] * 3))
def test_what_is_written_is_read(info):
    assert decode_token(json.loads(json.dumps(encode_token(info)))) == info


@given(
    st.dictionaries(st.sampled_from(list(json.loads(KAFKAS))), st.none() | st.integers() | st.text() | st.booleans())
)
def test_what_no_broker_writes_is_refused(changes):
    with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
        decode_token({**json.loads(KAFKAS), **changes})


def controller(directory, settings=SETTINGS):
    store = EmbeddedStore(str(directory))
    return store, Controller(store, "cluster", TopicDefaults(1, 1, {}), settings)


def test_a_single_node_has_them_after_a_restart_without_their_hmacs(tmp_path):
    store, one = controller(tmp_path)
    token = SETTINGS.token(INFO)
    assert whole(one.change_token(INFO.token_id, lambda old: old or token)) == token
    assert list(one.state.tokens) == [token]
    store.close()
    store, one = controller(tmp_path)
    assert list(one.state.tokens) == [token]
    assert one.state.tokens.by_hmac(token.hmac) == token
    store.close()
    text = (tmp_path / "__metadata.journal").read_text()
    assert token.password not in text
    assert token.hmac.hex() not in text
    store, other = controller(tmp_path, TokenSettings(b"another secret", 1000, 100, 10))
    assert other.state.tokens.by_hmac(token.hmac) is None
    assert load_tokens(store, None) is NO_TOKENS
    assert whole(other.change_token(INFO.token_id, lambda _old: None)) is None
    assert not len(other.state.tokens)
    store.close()
    store, one = controller(tmp_path)
    assert not list(one.state.tokens)
    store.close()
