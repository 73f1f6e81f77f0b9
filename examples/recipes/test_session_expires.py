"""A consumer hangs: its session expires, its partitions go to other members, and it rejoins as a new member."""

from __future__ import annotations

from confluent_kafka import Consumer

from kbroker import Broker, Faults, SteeredClock


def consumer(kafka: Broker, name: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "client.id": name,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    made.subscribe(["orders"])
    return made


def names(kafka: Broker) -> list[str]:
    return sorted(each.client_id for each in kafka.groups["billing"].members)


def test_a_session_expires(kafka: Broker, kafka_clock: SteeredClock, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    topic.produce("one")
    hanging = consumer(kafka, "hanging")
    assert hanging.poll(20) is not None

    with kafka_faults.disconnect(("Heartbeat", "JoinGroup"), "request", client_id="hanging") as silence:
        silence.wait(timeout=20)
        kafka_clock.advance(minutes=1)  # session.timeout.ms is 45 s
        kafka.wait_for(lambda broker: names(broker) == [])
        heir = consumer(kafka, "heir")
        topic.produce("two")
        message = heir.poll(20)
        assert message is not None
        assert names(kafka) == ["heir"]

    def both_are_members(broker: Broker) -> bool:
        hanging.poll(0.05)
        heir.poll(0.05)
        return names(broker) == ["hanging", "heir"]

    kafka.wait_for(both_are_members, timeout=20)
    hanging.close()
    heir.close()
