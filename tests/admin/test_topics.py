"""Topics are created and deleted also where the wait for all brokers fails."""

from __future__ import annotations

from kafka.errors import KafkaConnectionError

from kbroker.admin import topics


class Cluster:
    """An admin client whose cluster takes the change and is away afterwards."""

    def create_topics(self, names, **_):
        return {"topics": [{"name": name, "error_code": 17 if " " in name else 0} for name in names]}

    def delete_topics(self, names, **_):
        return self.create_topics(names)


def test_a_change_is_reported_though_the_cluster_is_away_behind_it(monkeypatch):
    waits = []

    def away(_admin, names):
        waits.append(list(names))
        raise KafkaConnectionError("away")

    monkeypatch.setattr(topics, "wait_for_topics", away)
    monkeypatch.setattr(topics, "wait_for_deletion", away)
    for change in (topics.create_topics, topics.delete_topics):
        refusals = change(Cluster(), ["a", "bad name"])
        assert refusals["a"] is None
        assert refusals["bad name"] is not None
    assert waits == [["a"], ["a"]]
