"""The judgement of an idempotent producer's batches detects what a broker must not do."""

from __future__ import annotations

import pytest

from kbroker import Broker
from tests.cluster.batches import Batch, judge, read_batches


def log(*batches: tuple[int, int, tuple[int, ...]]) -> list[Batch]:
    """Return consecutive batches of one producer, given as epoch, sequence and numbers."""
    made, offset = [], 0
    for epoch, sequence, numbers in batches:
        made.append(Batch(7, epoch, sequence, offset, numbers))
        offset += len(numbers)
    return made


def test_all_in_order() -> None:
    judged = judge(log((0, 0, (0, 1, 2)), (0, 3, (3,)), (1, 0, (4, 5))))
    assert (judged.twice, judged.epochs, judged.places[4]) == (0, 2, [4])


def test_what_the_producer_has_sent_again_in_another_epoch_is_counted() -> None:
    judged = judge(log((0, 0, (0, 1, 2)), (1, 0, (1, 2)), (1, 2, (3,))))
    assert (judged.twice, judged.places[1]) == (2, [1, 3])


@pytest.mark.parametrize(
    "batches",
    [
        log((0, 0, (0, 1)), (0, 0, (0, 1))),
        log((0, 0, (0, 1)), (0, 3, (3,))),
        log((0, 0, (0,)), (1, 0, (1,)), (0, 1, (2,))),
        log((0, 0, (0, 2)), (0, 2, (1,))),
        log((0, 1, (1, 2))),
        [*log((0, 0, (0, 1))), Batch(7, 0, 2, 3, (2,))],
    ],
    ids=["twice", "a gap", "an epoch that is over", "out of order", "the first is missing", "offsets with a gap"],
)
def test_what_a_broker_may_not_do(batches: list[Batch]) -> None:
    with pytest.raises(AssertionError):
        judge(batches)


def test_batches_are_read_as_they_are() -> None:
    from confluent_kafka import Producer

    with Broker() as broker:
        servers = broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        for number in range(50):
            producer.produce("numbers", str(number), partition=0)
            if number % 10 == 0:
                assert producer.flush(10) == 0
        assert producer.flush(10) == 0
        judged = judge(read_batches(servers, "numbers", 0, 10.0))
    assert (sorted(judged.places), judged.twice, judged.epochs) == (list(range(50)), 0, 1)
