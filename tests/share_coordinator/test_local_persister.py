"""The way to this broker's own share coordinator: its topic is made first, and errors that pass are tried again."""

from __future__ import annotations

import asyncio

from kbroker.broker.local_persister import LocalPersister
from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.persister import Done
from kbroker.share_coordinator.share_partition_state import SharePartition


class Broker:
    """A share coordinator that gives these answers, and the topic that it needs."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.pauses = []
        self.exists = False
        self.hosted = []

    def ensure_topic(self):
        return self.exists

    def auto_created(self, _topic):
        self.exists = True

    async def hosted_of(self, topic):
        self.hosted.append(topic)

    def delete(self, place):
        self.asked.append(place)
        return Done(self.answers.pop(0))

    async def pause(self, ms):
        self.pauses.append(ms)


def deleted(broker):
    persister = LocalPersister(broker, broker, broker, broker.pause)
    return asyncio.run(persister.delete("g", b"t" * 16, 3)).error_code


def test_the_topic_is_made_first():
    broker = Broker(ErrorCode.NONE)
    assert deleted(broker) is ErrorCode.NONE
    assert broker.hosted == ["__share_group_state"]
    assert broker.asked == [SharePartition("g", b"t" * 16, 3)]
    assert broker.pauses == []


def test_errors_that_pass_are_tried_again():
    broker = Broker(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
    assert deleted(broker) is ErrorCode.NONE
    assert broker.pauses == [100, 200]


def test_tries_come_to_an_end():
    broker = Broker(*[ErrorCode.NOT_COORDINATOR] * 5)
    assert deleted(broker) is ErrorCode.NOT_COORDINATOR
    assert len(broker.asked) == 5


def test_other_errors_are_answers():
    broker = Broker(ErrorCode.FENCED_STATE_EPOCH)
    assert deleted(broker) is ErrorCode.FENCED_STATE_EPOCH
    assert broker.pauses == []
