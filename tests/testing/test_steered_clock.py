"""Time that a test moves: work that becomes due is done when `advance` returns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Broker
from kbroker.clock import Clock
from kbroker.testing.steered_clock import SteeredClock

PATIENCE_S = 20.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def create(broker: Broker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    configs = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(PATIENCE_S)


def producer(broker: Broker, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **settings})


def ends(broker: Broker, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "looks"})
    found = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
    consumer.close()
    return found


def test_it_is_the_machines_until_it_is_moved() -> None:
    clock, moves = SteeredClock(), []
    clock.moved = moves.append
    before = datetime.now(UTC)
    assert abs(clock.now() - before) < timedelta(minutes=1)
    clock.advance(days=1, hours=1)
    assert abs(clock.now() - before - timedelta(hours=25)) < timedelta(minutes=1)
    monotonic = clock.monotonic_ms()
    clock.set(datetime(2020, 1, 1, tzinfo=UTC))
    assert (clock.now().year, moves) == (2020, [25 * 3_600_000, 0])
    assert clock.monotonic_ms() - monotonic < 60_000, "timers do not go back"
    clock.set(clock.now_ms() / 1000 + 60)
    assert 59_000 <= moves[-1] <= 60_000
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(hours=-1)


def test_it_is_advanced_by_a_timedelta_and_by_no_number_without_a_unit() -> None:
    clock, moves = SteeredClock(), []
    clock.moved = moves.append
    clock.advance(timedelta(hours=1, microseconds=1500))
    clock.advance(timedelta(seconds=1), minutes=1)
    assert moves == [3_600_002, 61_000]
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(timedelta(hours=-1))
    with pytest.raises(TypeError, match=r"advance\(46\) has no unit: advance\(seconds=46\)"):
        clock.advance(46)  # type: ignore[arg-type]
    assert len(moves) == 2


def test_it_stays_in_the_calendar() -> None:
    clock, moves = SteeredClock(), []
    clock.moved = moves.append
    clock.set(datetime(9998, 12, 31, 23, 59, tzinfo=UTC))
    moves.clear()
    with pytest.raises(ValueError, match="between 1970 and 9998"):
        clock.advance(hours=1)
    with pytest.raises(ValueError, match="between 1970 and 9998"):
        clock.set(-1)
    assert (clock.now().year, moves) == (9998, []), "nothing has been moved"
    clock.set(0)
    assert clock.now().year == 1970


def test_retention(broker: Broker) -> None:
    create(broker, "day", retention_ms="86400000")
    client = producer(broker)
    client.produce("day", "old")
    assert client.flush(PATIENCE_S) == 0
    broker.clock.advance(hours=23)
    assert ends(broker, "day") == (0, 1)
    broker.clock.advance(hours=2)
    assert ends(broker, "day") == (1, 1)
    client.produce("day", "new", timestamp=broker.clock.now_ms())
    assert client.flush(PATIENCE_S) == 0, "the client is still connected"


def test_timestamps_of_the_broker(broker: Broker) -> None:
    create(broker, "stamped", message_timestamp_type="LogAppendTime")
    broker.clock.set(datetime(2031, 5, 17, tzinfo=UTC))
    told: list[datetime] = []
    client = producer(broker)
    client.produce(
        "stamped", "v", on_delivery=lambda _, msg: told.append(datetime.fromtimestamp(msg.timestamp()[1] / 1000, UTC))
    )
    assert client.flush(PATIENCE_S) == 0
    assert (told[0].year, told[0].month, told[0].day) == (2031, 5, 17)


def test_a_session_runs_out(broker: Broker) -> None:
    create(broker, "t")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "billing",
            "session.timeout.ms": 45000,
            "heartbeat.interval.ms": 44000,
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def members() -> int:
        return len(admin.describe_consumer_groups(["billing"])["billing"].result(PATIENCE_S).members)

    assert members() == 1
    broker.clock.advance(seconds=46)
    assert members() == 0
    consumer.close()


def test_a_transaction_runs_out(broker: Broker) -> None:
    create(broker, "t")
    client = producer(broker, **{"transactional.id": "pay", "transaction.timeout.ms": 60000})
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    client.produce("t", "never")
    assert client.flush(PATIENCE_S) == 0
    broker.clock.advance(minutes=2)
    with pytest.raises(KafkaException) as failed:
        client.commit_transaction(PATIENCE_S)
    assert failed.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


def test_a_clock_of_the_tests_own_cannot_be_moved() -> None:
    class Stopped(Clock):
        def now_ms(self) -> int:
            return 1_000_000

        def monotonic_ms(self) -> float:
            return 1.0

    with pytest.raises(RuntimeError, match="of the test's own"):
        _ = Broker(clock=Stopped()).clock
