"""Requests to the share coordinator on another broker: many questions share a request, and each gets its own answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import share_state as messages
from kbroker.share_coordinator.peer_states import (
    DELETE,
    INITIALIZE,
    NO_ANSWER,
    READ,
    SUMMARY,
    WRITE,
    PeerStates,
)
from kbroker.share_coordinator.persister import Done, State, Summary
from kbroker.share_coordinator.share_partition_state import SharePartition
from kbroker.share_coordinator.state_batches import StateBatch

T, U = b"t" * 16, b"u" * 16


class Network:
    """The peers of a broker: each request waits until the test answers it."""

    def __init__(self):
        self.addresses = {2: ("two", 1), 3: ("three", 1)}
        self.requests = []
        self.closed = []
        self.states = PeerStates(PeersByNode(self, self.addresses.get, "1"), 1000)

    def peer(self, host, _port, _client_id):
        return Peer(self, host)

    def request(self):
        """Return the oldest unanswered request as its host receives it, with the host and the future of its answer."""
        host, request, version, future = self.requests.pop(0)
        return host, decode(type(request), version, encode(request, version)), future


class Peer:
    def __init__(self, network, host):
        self.network, self.host = network, host
        self.futures = []

    async def ask(self, request, version, answer, timeout_ms):
        assert timeout_ms == 1000
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.network.requests.append((self.host, request, version, future))
        response = await future
        return decode(answer, version, encode(response, version))

    def close(self):
        self.network.closed.append(self.host)
        for each in self.futures:
            if not each.done():
                each.set_exception(PeerUnavailable("closed"))


def results(response, result, request, **more):
    """Return a response with a result for each partition that a request names."""
    topics = []
    for topic in request.topics:
        found = [result(partition=each.partition, **more) for each in topic.partitions]
        topics.append((topic.topic_id, found))
    kind = {
        messages.PartitionResult: messages.TopicResult,
        messages.PartitionState: messages.TopicState,
        messages.PartitionSummary: messages.TopicSummary,
    }[result]
    return response(results=[kind(topic_id=topic_id, partitions=found) for topic_id, found in topics])


async def begun(*questions):
    tasks = [asyncio.ensure_future(each) for each in questions]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def deletion(network, place, node_id=2):
    return network.states.ask(node_id, DELETE, place, messages.PartitionToDelete(place.partition))


def named(request):
    return [(topic.topic_id, [each.partition for each in topic.partitions]) for topic in request.topics]


def test_what_waits_for_a_broker_goes_into_one_request_by_group_and_operation():
    async def scenario():
        network = Network()
        first = await begun(deletion(network, SharePartition("g", T, 0)))
        rest = await begun(
            deletion(network, SharePartition("g", T, 1)),
            deletion(network, SharePartition("h", T, 1)),
            deletion(network, SharePartition("g", U, 7)),
            network.states.ask(2, SUMMARY, SharePartition("g", T, 2), messages.PartitionToRead(2, -1)),
            deletion(network, SharePartition("g", T, 1)),
            deletion(network, SharePartition("g", T, 5), node_id=3),
        )
        seen = []
        while network.requests:
            host, request, future = network.request()
            seen.append((host, type(request).__name__[:6], request.group_id, named(request)))
            if isinstance(request, messages.DeleteShareGroupStateRequest):
                response = results(messages.DeleteShareGroupStateResponse, messages.PartitionResult, request)
            else:
                response = results(
                    messages.ReadShareGroupStateSummaryResponse, messages.PartitionSummary, request, start_offset=4
                )
            future.set_result(response)
            await begun()
        assert seen == [
            ("two", "Delete", "g", [(T, [0])]),
            ("three", "Delete", "g", [(T, [5])]),
            ("two", "Delete", "g", [(T, [1]), (U, [7])]),
            ("two", "Delete", "h", [(T, [1])]),
            ("two", "ReadSh", "g", [(T, [2])]),
            ("two", "Delete", "g", [(T, [1])]),
        ]
        answers = [await each for each in (*first, *rest)]
        assert [type(each) for each in answers] == [Done, Done, Done, Done, Summary, Done, Done]
        assert answers[4].start_offset == 4
        assert not network.states._sending
        assert not network.states._queues

    asyncio.run(scenario())


def test_each_operation_arrives_and_is_answered():
    batches = [messages.StateBatch(3, 4, 0, 1)]
    place = SharePartition("g", T, 0)
    state = {"state_epoch": 2, "start_offset": 3, "state_batches": batches}
    cases = [
        (INITIALIZE, messages.InitializedPartition(0, 2, 3), messages.PartitionResult, {}, Done()),
        (
            READ,
            messages.PartitionToRead(0, 2),
            messages.PartitionState,
            state,
            State(0, 2, 3, (StateBatch(3, 4, 0, 1),)),
        ),
        (WRITE, messages.PartitionToWrite(0, 2, 1, 3, 1, batches), messages.PartitionResult, {}, Done()),
        (DELETE, messages.PartitionToDelete(0), messages.PartitionResult, {}, Done()),
        (
            SUMMARY,
            messages.PartitionToRead(0, -1),
            messages.PartitionSummary,
            {"state_epoch": 2, "leader_epoch": 1, "start_offset": 3, "delivery_complete_count": 9},
            Summary(0, 2, 1, 3, 9),
        ),
    ]

    async def scenario():
        network = Network()
        for operation, wanted, result, values, expected in cases:
            for code in (0, int(ErrorCode.FENCED_STATE_EPOCH), 9999):
                (task,) = await begun(network.states.ask(2, operation, place, wanted))
                _, request, future = network.request()
                assert request.topics[0].partitions == [wanted]
                response = results(operation.response, result, request, error_code=code, error_message="m", **values)
                future.set_result(response)
                answer = await task
                known = ErrorCode.UNKNOWN_SERVER_ERROR if code == 9999 else code
                assert answer == expected._replace(error_code=known, message="m")

    asyncio.run(scenario())


def test_a_request_is_bounded():
    async def scenario():
        network = Network()
        await begun(deletion(network, SharePartition("g", T, 0)))
        await begun(*(deletion(network, SharePartition("g", T, 1 + each)) for each in range(150)))
        sizes = []
        while network.requests:
            _, request, future = network.request()
            sizes.append(len(request.topics[0].partitions))
            future.set_result(results(messages.DeleteShareGroupStateResponse, messages.PartitionResult, request))
            await begun()
        assert sizes == [1, 100, 50]
        many = [messages.StateBatch(each, each, 2, 1) for each in range(600)]

        def write(partition, batches):
            wanted = messages.PartitionToWrite(partition, 1, 1, 0, 0, batches)
            return network.states.ask(2, WRITE, SharePartition("g", T, partition), wanted)

        await begun(write(0, []))
        await begun(write(1, many * 3), write(2, many), write(3, many[:400]), write(4, many))
        sent = []
        while network.requests:
            _, request, future = network.request()
            sent.append([each.partition for each in request.topics[0].partitions])
            future.set_result(results(messages.WriteShareGroupStateResponse, messages.PartitionResult, request))
            await begun()
        assert sent == [[0], [1], [2, 3], [4]]

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["lost", "moved", "unknown", "left out", "closed", "broken"])
def test_whoever_gets_no_answer_is_told(end):
    async def scenario():
        network = Network()
        if end == "unknown":
            del network.addresses[2]
        first, second = await begun(
            deletion(network, SharePartition("g", T, 0)), deletion(network, SharePartition("h", T, 0))
        )
        if end == "lost":
            for _ in range(2):
                network.request()[2].set_exception(PeerUnavailable("lost"))
                await begun()
        elif end == "broken":
            for _ in range(2):
                network.request()[2].set_exception(ValueError("a fault of this program"))
                await begun()
        elif end == "left out":
            for _ in range(2):
                network.request()[2].set_result(messages.DeleteShareGroupStateResponse())
                await begun()
        elif end == "moved":
            network.addresses[2] = ("elsewhere", 1)
            network.states.brokers_changed()
            assert network.closed == ["two"]
            await begun()
            assert network.requests[-1][0] == "elsewhere", "the next question goes to the new address"
            network.states.close()
        elif end == "closed":
            network.states.close()
        async with asyncio.timeout(10):
            assert [(await each).error_code for each in (first, second)] == [NO_ANSWER, NO_ANSWER]

    asyncio.run(scenario())


def test_one_who_does_not_wait_any_more_holds_up_nobody():
    async def scenario():
        network = Network()
        first, second = await begun(
            deletion(network, SharePartition("g", T, 0)), deletion(network, SharePartition("h", T, 0))
        )
        first.cancel()
        _, request, future = network.request()
        future.set_result(results(messages.DeleteShareGroupStateResponse, messages.PartitionResult, request))
        await begun()
        _, request, future = network.request()
        future.set_result(results(messages.DeleteShareGroupStateResponse, messages.PartitionResult, request))
        assert (await second).error_code == 0

    asyncio.run(scenario())


async def until_asked(network):
    for _ in range(10):
        if network.requests:
            return
        await asyncio.sleep(0)
    raise AssertionError("no request")


def test_many_groups_that_wait_for_a_broker_that_never_answers_do_not_wait_one_after_the_other():
    async def scenario():
        network, loop = Network(), asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now
        waiting = await begun(*(deletion(network, SharePartition(f"g{each}", T, 0)) for each in range(100)))
        now += 0.5
        late = await begun(deletion(network, SharePartition("late", T, 0)))
        now += 0.6
        network.request()[2].set_exception(PeerUnavailable("no answer in time"))
        for _ in range(200):
            await asyncio.sleep(0)
        assert {each.done() and each.result().error_code for each in waiting} == {NO_ANSWER}
        (request,) = network.requests
        assert request[1].group_id == "late", "it has waited for half a second only"
        assert not late[0].done()
        network.states.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_the_work_for_a_request_does_not_grow_with_the_number_of_groups_that_wait():
    groups = 10_000

    async def scenario():
        network, loop = Network(), asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now
        tasks = [asyncio.ensure_future(deletion(network, SharePartition(f"g{each}", T, 0))) for each in range(groups)]
        for _ in range(groups):
            await until_asked(network)
            _, request, future = network.request()
            future.set_result(results(messages.DeleteShareGroupStateResponse, messages.PartitionResult, request))
        assert all(each.error_code == 0 for each in await asyncio.gather(*tasks))

    begin = time.process_time()
    asyncio.run(scenario())
    assert time.process_time() - begin < 8, "with a search of all that wait, it is about 20 s"


def test_after_the_end_there_are_no_questions():
    async def scenario():
        network = Network()
        network.states.close()
        async with asyncio.timeout(10):
            answer = await deletion(network, SharePartition("g", T, 0))
        assert answer.error_code == NO_ANSWER
        assert not network.requests
        assert not network.states._sending

    asyncio.run(scenario())
