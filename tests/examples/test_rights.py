from confluent_kafka import Consumer, Producer

from kbroker import Acl, Broker

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
ACLS = [
    Acl(allow_principal="User:alice", producer=True, topic="orders"),
    Acl(allow_principal="User:bob", consumer=True, topic="orders", group="billing"),
]


def test_rights():
    with Broker(tls=True, users=USERS, acls=ACLS) as broker:
        producer = Producer(broker.client_settings("alice").confluent_kafka)
        producer.produce("orders", b"one")
        assert producer.flush(10) == 0
        producer.close()

        settings = broker.client_settings("bob").confluent_kafka
        consumer = Consumer({**settings, "group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        assert consumer.poll(10).value() == b"one"
        consumer.close()
