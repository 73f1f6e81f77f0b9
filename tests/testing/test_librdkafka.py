"""What librdkafka does under faults that a service has to know of: found by faults, and no broker can help it."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from tests.cluster.batches import judge, read_batches

PATIENCE_S = 20.0


def test_an_idempotent_producer_writes_twice_what_another_partition_made_it_number_anew() -> None:
    """Of two requests in flight for partition 0 the first is refused, so the second is out of order.

    The producer begins a new epoch then, for all partitions. What partition 1 has written, and whose answer was lost,
    is written there again.
    """
    with Broker() as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(PATIENCE_S)
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "socket.timeout.ms": 1000,
                "log_level": 0,
            }
        )
        failed: list[object] = []

        def produce(partition: int, number: int) -> None:
            producer.produce(
                "t", str(number), partition=partition, on_delivery=lambda err, _: failed.append(err) if err else None
            )

        for partition in (0, 1):
            produce(partition, 0)
        assert producer.flush(PATIENCE_S) == 0
        with (
            broker.faults.drop("Produce", topic="t", partition=1, times=1) as lost,
            broker.faults.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, topic="t", partition=0, times=1) as refused,
            broker.faults.delay("Produce", 0.2, topic="t", partition=0, times=1),
        ):
            produce(1, 1)
            for number in (1, 2, 3):
                produce(0, number)
            assert producer.flush(PATIENCE_S) == 0
        assert (lost.hits, refused.hits, failed) == (1, 1, [])
        first, second = (judge(read_batches(servers, "t", index, PATIENCE_S)) for index in (0, 1))
    assert (first.twice, first.epochs) == (0, 2)
    assert (second.twice, second.epochs, second.places[1]) == (1, 2, [1, 2])
