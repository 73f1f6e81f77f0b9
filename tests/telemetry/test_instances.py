"""The rules of both telemetry APIs alone, with a time that the test sets: intervals, refusals, expiry."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from kbroker.handlers.client_telemetry import CODECS
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.clients import PushTelemetryRequest
from kbroker.protocol.wire import RESERVED_UUIDS, ZERO_UUID, uuid_text
from kbroker.telemetry import instances
from kbroker.telemetry.instances import EXPIRY_MS, ClientTelemetry, Instance
from kbroker.telemetry.subscriptions import DEFAULT_INTERVAL_MS

NONE, THROTTLED, UNKNOWN, INVALID = (
    ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.INVALID_REQUEST,
)  # fmt: skip
ME = b"client-instance1"
TEXTS: Mapping[str, str | None] = {"client_id": "app"}


class World:
    """The telemetry of one broker, and a time in ms."""

    def __init__(self, max_bytes: int = 100, **configs: str) -> None:
        numbers = itertools.count(1)
        self.telemetry = ClientTelemetry(max_bytes, lambda: next(numbers).to_bytes(16, "big"))
        self.now_ms = 1_000_000.0
        self.subscribe(**{"metrics": "*", "interval.ms": "1000", **configs})

    def subscribe(self, **configs: str) -> None:
        self.telemetry.subscriptions.follow({"s": configs} if configs else {})

    def instance(self, instance_id: bytes = ME) -> Instance:
        return whole(self.telemetry.of(instance_id, TEXTS, self.now_ms))[0]

    def ask(self, after_ms: float = 0) -> ErrorCode:
        self.now_ms += after_ms
        return self.telemetry.asked(self.instance(), self.now_ms)

    def push(self, after_ms: float = 0, *, terminating: bool = False, codec: int = 4, size: int = 1) -> ErrorCode:
        return self.push_by(self.instance().subscription_id, after_ms, terminating, codec, size)

    def push_by(
        self, number: int, after_ms: float = 0, terminating: bool = False, codec: int = 4, size: int = 1
    ) -> ErrorCode:
        self.now_ms += after_ms
        request = PushTelemetryRequest(
            client_instance_id=ME,
            subscription_id=number,
            terminating=terminating,
            compression_type=codec,
            metrics=bytes(size),
        )
        return self.telemetry.pushed(self.instance(), request, self.now_ms)


def test_a_client_asks_once_an_interval() -> None:
    world = World()
    assert [world.ask(), world.ask(), world.ask(999), world.ask(1)] == [NONE, THROTTLED, THROTTLED, NONE]
    assert world.telemetry.throttled == 2


def test_a_client_pushes_at_once_after_it_has_asked_and_then_once_an_interval() -> None:
    world = World()
    assert world.ask() is NONE
    assert [world.push(1), world.push(1), world.push(998), world.push(1)] == [NONE, THROTTLED, THROTTLED, NONE]
    assert world.ask(999) is THROTTLED, "a push counts as well"
    assert world.ask(1) is NONE
    assert world.push(1) is NONE


def test_who_never_asked_may_push_once() -> None:
    world = World()
    assert [world.push(), world.push()] == [NONE, THROTTLED]


@pytest.mark.parametrize(
    ("number", "codec", "error"), [(1, 4, UNKNOWN), (0, 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)]
)
def test_who_is_refused_for_what_he_goes_by_may_ask_at_once_and_push(number: int, codec: int, error: ErrorCode) -> None:
    world = World()
    assert world.ask() is NONE
    own = world.instance().subscription_id
    assert world.push_by(own + number, codec=codec) is error
    assert world.ask() is NONE
    assert world.ask() is THROTTLED, "only once"
    assert world.push() is THROTTLED, "asking early gives no new push"
    assert world.push(1000) is NONE


def test_a_push_that_is_too_large_counts_as_one() -> None:
    world = World(max_bytes=100)
    assert world.ask() is NONE
    assert world.push(size=101) is ErrorCode.TELEMETRY_TOO_LARGE
    assert world.push(size=100) is THROTTLED
    assert world.push(1000, size=100) is NONE


def test_refusals_are_looked_for_in_kafkas_order() -> None:
    world = World(max_bytes=100)
    assert world.ask() is NONE
    own = world.instance().subscription_id
    assert world.push_by(own + 1, codec=9, size=101) is UNKNOWN
    assert world.push_by(own + 1, codec=9, size=101) is THROTTLED
    assert world.push_by(own, 1000, codec=9, size=101) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert world.telemetry.unknown_subscriptions == 1


def test_the_last_push_may_come_early_and_is_the_last() -> None:
    world = World()
    assert [world.ask(), world.push(), world.push(terminating=True)] == [NONE, NONE, NONE]
    assert world.push(5000, terminating=True) is INVALID
    assert world.push(5000) is INVALID
    assert world.push(5000) is NONE, "who goes on after all is taken back"


def test_no_codec_is_refused_that_is_offered_and_none_at_all_is_taken() -> None:
    for codec in (0, *CODECS):
        world = World()
        assert world.push(codec=codec) is NONE
    for codec in (-1, 5):
        assert World().push(codec=codec) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_other_subscriptions_make_a_client_new() -> None:
    world = World()
    assert [world.ask(), world.push(), world.push(terminating=True), world.ask()] == [NONE, NONE, NONE, THROTTLED]
    before = world.instance().subscription_id
    world.subscribe(metrics="a.", **{"interval.ms": "2000"})
    assert world.push_by(before) is UNKNOWN
    assert world.ask() is NONE
    assert world.instance().subscription_id != before
    assert (world.instance().wanted.metrics, world.instance().wanted.interval_ms) == (("a.",), 2000)
    world.subscribe()
    assert (world.instance().wanted.metrics, world.instance().wanted.interval_ms) == ((), DEFAULT_INTERVAL_MS)


def test_what_is_known_of_a_client_stays_as_it_was_when_it_came() -> None:
    world = World(match="client_id=app")
    assert world.instance().wanted.metrics == ("*",)
    world.subscribe(metrics="b.", match="client_id=app")
    found, made = whole(world.telemetry.of(ME, {"client_id": "other"}, world.now_ms))
    assert made
    assert found.wanted.metrics == ("b.",)


def test_a_client_is_known_by_its_id() -> None:
    world = World(match=f"client_instance_id={uuid_text(ME)}")
    assert world.instance().wanted.metrics == ("*",)
    assert world.instance(b"client-instance2").wanted.metrics == ()


def test_of_two_requests_at_once_one_makes_a_client() -> None:
    world = World()
    one, two = (world.telemetry.of(ME, TEXTS, world.now_ms) for _ in range(2))
    one.send(None)
    found, made = whole(two)
    assert made
    assert world.telemetry.asked(found, world.now_ms) is NONE
    assert whole(one) == (found, False)
    assert world.telemetry.asked(found, world.now_ms) is THROTTLED
    world.subscribe(metrics="b.")
    one, two = (world.telemetry.of(ME, TEXTS, world.now_ms) for _ in range(2))
    one.send(None)
    other, made = whole(two)
    assert made
    assert other is not found
    assert whole(one) == (other, False)


def test_of_what_a_client_calls_itself_little_is_kept() -> None:
    world = World()
    found, _ = whole(world.telemetry.of(ME, {"client_id": "a" * 32_000, "client_software_name": None}, world.now_ms))
    assert [len(text) for text in found.texts.values() if text is not None] == [1_000, 22]


@pytest.mark.parametrize(("interval_ms", "expiry_ms"), [(1000, EXPIRY_MS), (60_000, 180_000)])
def test_who_is_not_heard_of_is_forgotten(interval_ms: int, expiry_ms: int) -> None:
    world = World(**{"interval.ms": str(interval_ms)})
    first = world.instance()
    world.now_ms += expiry_ms - 1
    assert world.instance() is first
    world.now_ms += expiry_ms
    assert world.instance() is not first
    assert len(world.telemetry) == 1
    world.now_ms += expiry_ms - 1
    whole(world.telemetry.sweep(world.now_ms))
    assert len(world.telemetry) == 1
    whole(world.telemetry.sweep(world.now_ms + 1))
    assert len(world.telemetry) == 0


def test_instances_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert instances.MOST_INSTANCES == 16_384, "Kafka's"
    monkeypatch.setattr(instances, "MOST_INSTANCES", 3)
    world = World()
    ids = [number.to_bytes(16, "little") for number in range(1, 5)]
    kept = [world.instance(each) for each in ids[:3]]
    assert world.instance(ids[0]) is kept[0], "heard of again"
    world.instance(ids[3])
    assert len(world.telemetry) == 3
    assert world.instance(ids[0]) is kept[0]
    assert world.instance(ids[1]) is not kept[1], "not heard of for longest"


def test_ids_are_made_for_who_has_none() -> None:
    options = [ZERO_UUID, RESERVED_UUIDS[1], b"\xf8" + bytes(15), ME, b"x" * 16]  # the third begins with "-"
    assert uuid_text(options[2]).startswith("-")
    made = iter(options)
    telemetry = ClientTelemetry(1, lambda: next(made))
    whole(telemetry.of(ME, TEXTS, 0))
    assert telemetry.id_for(ZERO_UUID) == b"x" * 16
    assert telemetry.id_for(ME) == ME


def test_an_instance_ends_with_its_connection() -> None:
    world = World()
    assert world.ask() is NONE
    world.telemetry.forget(ME)
    assert len(world.telemetry) == 0
    world.telemetry.forget(ME)
    assert world.ask() is NONE
