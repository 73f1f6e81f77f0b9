"""The subjects of requests, and their division by topic and partition: each subject is in exactly one part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import DeleteTopicsRequest
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kbroker.testing.subjects import joined, part_of, subjects_of

IDS = {bytes([1]) * 16: "by-id"}
produced = st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 3), min_size=1), min_size=1).map(
    lambda topics: ProduceRequest(
        topic_data=[
            TopicProduceData(
                name=name, partition_data=[PartitionProduceData(index=each) for each in sorted(partitions)]
            )
            for name, partitions in topics.items()
        ]
    )
)


def partitions_in(request: ProduceRequest) -> list[tuple[str, int]]:
    return [(topic.name, each.index) for topic in request.topic_data for each in topic.partition_data]


def test_names_of_all_kinds() -> None:
    found = subjects_of(
        FetchRequest(topics=[FetchTopic(topic_id=bytes([1]) * 16, partitions=[FetchPartition(partition=3)])]), IDS.get
    )
    assert found.topics == {"by-id": {3}}
    assert subjects_of(FetchRequest(topics=[FetchTopic(topic_id=bytes([2]) * 16)]), IDS.get).topics == {}
    assert subjects_of(DeleteTopicsRequest(topic_names=["gone"]), IDS.get).topics == {"gone": set()}
    asked = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup("billing", topics=[OffsetFetchRequestTopics("t", partition_indexes=[1])])]
    )
    found = subjects_of(asked, IDS.get)
    assert (found.groups, found.topics) == ({"billing"}, {"t": {1}})
    asked = AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnTransaction("pay", topics=[AddPartitionsToTxnTopic("t", [0, 2])])]
    )
    found = subjects_of(asked, IDS.get)
    assert (found.transactional_ids, found.topics) == ({"pay"}, {"t": {0, 2}})
    assert subjects_of(FindCoordinatorRequest(key_type=1, coordinator_keys=["pay"]), IDS.get).transactional_ids == {
        "pay"
    }
    assert subjects_of(FindCoordinatorRequest(key="billing"), IDS.get).groups == {"billing"}


@given(produced, st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 3))))
def test_a_part_and_the_rest_are_the_whole(request: ProduceRequest, wanted: set[tuple[str, int]]) -> None:
    part, some = part_of(request, lambda *key: key in wanted, IDS.get)
    rest, others = part_of(request, lambda *key: key not in wanted, IDS.get)
    assert some == bool(partitions_in(part))
    assert others == bool(partitions_in(rest))
    assert set(partitions_in(part)) == set(partitions_in(request)) & wanted
    whole = joined(part, rest, IDS.get)
    assert sorted(partitions_in(whole)) == sorted(partitions_in(request))
