"""Topics are created and deleted also where the wait for all brokers fails."""

from __future__ import annotations

from kafka.errors import KafkaConnectionError

from kbroker.admin import changes, topics
from kbroker.changes import TOPIC_DELETE
from kbroker.protocol.messages.topics import DeletableTopicResult, DeleteTopicsResponse


class Cluster:
    """An admin client whose cluster takes the change and is away afterwards."""

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
