"""Which limit applies to a client, compared with a model that goes through Kafka's list from its top."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.quota.client_quotas import Limit, Limits

ORDER = [
    lambda user, client: (user, client),
    lambda user, _client: (user, ""),
    lambda user, _client: (user, None),
    lambda _user, client: ("", client),
    lambda _user, _client: ("", ""),
    lambda _user, _client: ("", None),
    lambda _user, client: (None, client),
    lambda _user, _client: (None, ""),
]
"""/config/users/U/clients/C, users/U/clients/<default>, users/U, users/<default>/clients/C, and so on."""


@pytest.mark.parametrize("first", range(8))
def test_the_most_specific_limit_holds(first):
    limits = {level("alice", "app"): 100.0 + at for at, level in enumerate(ORDER) if at >= first}
    found = Limits(limits).of("alice", "app")
    assert found is not None
    assert found.value == 100.0 + first
    user, client_id = ORDER[first]("alice", "app")
    assert found.bucket == (None if user is None else "alice", None if client_id is None else "app")


def test_defaults_hold_for_each_on_its_own():
    limits = Limits({("", None): 5.0})
    assert limits.of("alice", "app") == Limit(("alice", None), 5.0)
    assert limits.of("bob", None) == Limit(("bob", None), 5.0)


def test_a_client_id_counts_for_all_its_users():
    limits = Limits({(None, ""): 5.0})
    assert limits.of("alice", "app") == limits.of("bob", "app") == Limit((None, "app"), 5.0)


@pytest.mark.parametrize("client_id", [None, ""])
def test_who_has_no_client_id_has_no_limit_of_client_ids(client_id):
    assert Limits({(None, ""): 5.0, ("", ""): 6.0, ("alice", ""): 7.0}).of("alice", client_id) is None
    assert Limits({(None, ""): 5.0, ("alice", None): 7.0}).of("alice", client_id) == Limit(("alice", None), 7.0)


def test_nothing_holds_where_nothing_is_set():
    assert not Limits({})
    assert Limits({}).of("alice", "app") is None
    assert Limits({("bob", None): 1.0, (None, "other"): 1.0}).of("alice", "app") is None


names = st.sampled_from(["", "a", "b", None])
buckets = st.tuples(names, names).filter(lambda bucket: bucket != (None, None))


@given(st.dictionaries(buckets, st.floats(1, 100)), st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]))
def test_against_a_model(limits, user, client_id):
    wanted = next((limits[key] for level in ORDER if (key := level(user, client_id)) in limits), None)
    found = Limits(limits).of(user, client_id)
    assert (None if found is None else found.value) == wanted


@given(
    st.dictionaries(buckets, st.floats(1, 100)),
    st.lists(st.tuples(buckets, st.one_of(st.none(), st.floats(1, 100))), max_size=20),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["a", "b", "c"]),
)
def test_what_is_altered_is_as_if_it_had_been_so_from_the_beginning(limits, changes, user, client_id):
    altered = Limits(limits)
    for bucket, value in changes:
        altered.alter(bucket, value)
        limits.pop(bucket, None)
        if value is not None:
            limits[bucket] = value
    assert altered.of(user, client_id) == Limits(limits).of(user, client_id)
    assert bool(altered) == bool(limits)
