from confluent_kafka import Producer


def test_an_order_is_sent(kafka):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", b"one", key=b"1")
    assert producer.flush(10) == 0
    assert kafka.topics["orders"].values() == [b"one"]
    assert kafka.requests.of("Produce", topic="orders")
