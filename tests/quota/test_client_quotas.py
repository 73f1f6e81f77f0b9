"""Clients' throttle times, without a socket and with the test's own clock."""

from __future__ import annotations

import math

import pytest

from kbroker.quota.client_quotas import ClientQuotas, key_of
from kbroker.quota.configured import CONSUMER, MUTATION, PRODUCER, REQUEST, Entity
from kbroker.quota.rate import EXPIRY_MS, MOST, Sensors, Window

WINDOW = Window(11, 1000)


class World:
    def __init__(self, quotas):
        self.now = 1_000_000.0
        self.heard = 0
        self.quotas = ClientQuotas(lambda: self.now, WINDOW, WINDOW)
        self.quotas.on_activity = self.hear
        self.quotas.replace(quotas)

    def hear(self):
        self.heard += 1

    def produce(self, size, user="alice", client_id="app"):
        return self.quotas.produced.record(user, client_id, size, self.now)


def test_nothing_is_active_without_limits():
    world = World({})
    assert not world.quotas.active
    assert world.heard == 0
    world.quotas.replace({Entity("alice"): {PRODUCER: 100.0}})
    assert world.quotas.active
    assert world.heard == 1
    world.quotas.replace({Entity("bob"): {PRODUCER: 100.0}})
    assert world.heard == 1
    world.quotas.replace({Entity(ip="127.0.0.1"): {"connection_creation_rate": 1.0}})
    assert not world.quotas.active
    assert world.heard == 2


def test_one_limit_after_the_other():
    world = World({})
    world.quotas.alter(Entity("alice"), {PRODUCER: 1000.0})
    assert (world.quotas.active, world.heard) == (True, 1)
    assert world.produce(8_000) == 0
    world.quotas.alter(Entity("alice", "app"), {PRODUCER: 500.0})
    world.quotas.alter(Entity(ip="127.0.0.1"), {"connection_creation_rate": 1.0})
    assert world.produce(8_000) == 6_000
    world.quotas.alter(Entity("alice", "app"), {})
    assert world.produce(2_000) == 0
    world.quotas.alter(Entity("alice"), {CONSUMER: 1.0})
    assert world.produce(1e9) == 0
    world.quotas.alter(Entity("alice"), {})
    assert (world.quotas.active, world.heard) == (False, 2)


def test_a_users_connections_share_a_users_quota():
    world = World({Entity("alice"): {PRODUCER: 1000.0}})
    assert world.produce(8_000) == 0
    assert world.produce(8_000, client_id="other") == 6_000
    assert world.produce(16_000, user="bob") == 0


def test_a_changed_limit_goes_by_what_was_counted():
    world = World({Entity("alice"): {PRODUCER: 1000.0}})
    assert world.produce(10_000) == 0
    world.quotas.replace({Entity("alice"): {PRODUCER: 500.0}})
    assert world.produce(0) == 10_000
    world.quotas.replace({Entity("alice"): {CONSUMER: 500.0}})
    assert world.produce(10_000) == 0
    assert len(world.quotas.produced) == 0


def test_the_time_of_requests_pauses_for_one_sample_at_most():
    world = World({Entity("alice"): {REQUEST: 10.0}})
    assert world.quotas.worked.record("alice", "app", 90.0, world.now) == 0
    assert world.quotas.worked.record("alice", "app", 900.0, world.now) == 1000


def test_the_largest_fetch_is_what_needs_no_pause():
    world = World({Entity(client_id="app"): {CONSUMER: 1000.0}})
    assert world.quotas.fetched.at_once("alice", "app") == 10_000
    assert world.quotas.fetched.at_once("alice", "other") is None
    assert world.quotas.fetched.record("alice", "app", 10_000, world.now) == 0
    world.quotas.fetched.note("alice", "app", -10_000, world.now)
    assert world.quotas.fetched.record("alice", "app", 10_001, world.now) > 0


def test_mutations_strict_and_permissive():
    world = World({Entity("alice"): {MUTATION: 1.0}})
    mutate = world.quotas.mutated.mutate
    assert mutate("alice", "app", 20, world.now, strict=True) == (True, 0)  # 11 had accumulated, 9 are owed
    assert mutate("alice", "app", 1, world.now, strict=True) == (False, 9_000)
    assert mutate("alice", "app", 1, world.now, strict=False) == (True, 10_000)
    world.now += 10_000
    assert mutate("alice", "app", 1, world.now, strict=True) == (True, 0)
    assert mutate("bob", "app", 1000, world.now, strict=True) == (True, 0)


def test_a_limit_without_end_limits_nothing():
    world = World({Entity("alice"): {MUTATION: math.inf, PRODUCER: math.inf, REQUEST: math.inf}})
    assert world.produce(1e15) == 0
    assert world.quotas.mutated.mutate("alice", "app", 1000, world.now, strict=True) == (True, 0)
    assert world.quotas.worked.record("alice", "app", 1e9, world.now) == 0


def test_client_ids_without_end_take_no_memory_without_end():
    world = World({Entity(client_id=""): {PRODUCER: 1.0}})
    for number in range(MOST + 500):
        world.produce(1, client_id=f"client-{number}")
    assert len(world.quotas.produced) == MOST


def test_a_long_client_id_is_not_kept():
    user, client_id = key_of((None, "x" * 30_000))
    assert user is None
    assert client_id is not None
    assert len(client_id) < 100
    assert key_of((None, "x" * 30_000)) != key_of((None, "x" * 29_999 + "y"))
    assert key_of(("alice", "app")) == ("alice", "app")


def test_what_was_not_used_for_an_hour_is_forgotten():
    sensors: Sensors[str, list[str]] = Sensors(list)
    sensors.get("a", 0).append("was here")
    sensors.get("b", 10)
    assert sensors.get("a", EXPIRY_MS - 1) == ["was here"]
    sensors.get("c", EXPIRY_MS + 10)
    assert len(sensors) == 2  # b is gone
    assert sensors.get("a", 2 * EXPIRY_MS) == []


@pytest.mark.parametrize("most", [1, 3])
def test_the_longest_unused_goes_first(most):
    sensors: Sensors[int, list[int]] = Sensors(list, most)
    for number in range(most):
        sensors.get(number, number).append(number)
    sensors.get(0, 50)
    sensors.get(99, 100)
    assert len(sensors) == most
    assert sensors.get(0, 101) == ([0] if most > 1 else [])
