from confluent_kafka import Consumer, Producer

from kbroker import Broker


def test_orders():
    with Broker() as broker:  # a free port, a private directory, its own thread
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("orders", b"one", key=b"1")
        assert producer.flush(10) == 0
        producer.close()

        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        message = consumer.poll(10)
        assert (message.key(), message.value()) == (b"1", b"one")
        consumer.close()
