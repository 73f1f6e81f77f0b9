"""A change is reported even if the cluster becomes unreachable before its end."""

from __future__ import annotations

import pytest
from kafka.errors import KafkaConnectionError

from kbroker.admin import changes, topics
from kbroker.changes import GROUP_DELETE_OFFSETS, TOPIC_DELETE
from kbroker.protocol.messages.group_offsets import OffsetDeleteResponse
from kbroker.protocol.messages.topics import DeletableTopicResult, DeleteTopicsResponse


class Cluster:
    """An admin client whose cluster accepts the change and is unreachable afterwards."""

    def create_topics(self, names, **_):
        return {"topics": [{"name": name, "error_code": 17 if " " in name else 0} for name in names]}


def test_a_change_is_reported_though_the_cluster_is_away_behind_it(monkeypatch):
    waits = []

    def away(_admin, names):
        waits.append(list(names))
        raise KafkaConnectionError("away")

    def delete(_admin, request, _kind):
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(each.name, bytes(16), 17 if " " in each.name else 0) for each in request.topics
            ]
        )

    monkeypatch.setattr(topics, "wait_for_topics", away)
    monkeypatch.setattr(changes, "wait_for_deletion", away)
    monkeypatch.setattr(changes, "ask_controller", delete)
    created = topics.create_topics(Cluster(), ["a", "bad name"])
    assert created["a"] is None
    assert created["bad name"] is not None
    done, refusals = changes.carry_out(Cluster(), TOPIC_DELETE, ["a", "bad name"], {})
    assert done == ["a"]
    assert [each.name for each in refusals] == ["INVALID_TOPIC"]
    assert waits == [["a"], ["a"]]


@pytest.mark.parametrize("lost_at", [0, 1])
def test_a_connection_that_is_lost_in_the_middle_leaves_a_report_of_each_group(monkeypatch, lost_at):
    asked = []

    def ask(_admin, group, _request, _kind):
        asked.append(group)
        if len(asked) > lost_at:
            raise KafkaConnectionError("away")
        return OffsetDeleteResponse(0, 0, [])

    monkeypatch.setattr(changes, "ask_coordinator", ask)
    monkeypatch.setattr(changes._Cluster, "partitions_of", lambda *_: 1)
    values = {"topic": ["orders"]}
    if not lost_at:  # the error of the first request has a line of its own, with the cluster's address
        with pytest.raises(KafkaConnectionError):
            changes.carry_out(Cluster(), GROUP_DELETE_OFFSETS, ["a", "b", "c"], values)
        return
    done, refusals = changes.carry_out(Cluster(), GROUP_DELETE_OFFSETS, ["a", "b", "c"], values)
    assert (done, asked) == (["a"], ["a", "b"])
    assert ["away" in each.text and name in each.text for name, each in zip("bc", refusals, strict=True)] == [True] * 2
