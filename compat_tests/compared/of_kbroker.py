"""kbroker, embedded: one broker, or a cluster of three where a trial wants leaders to change."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.compared.target import Target
from kbroker import Acl, Broker, Cluster, ErrorCode
from kbroker.embed_cluster import ClusterBroker
from kbroker.handlers.registry import APIS


def _api(key: int) -> str:
    return APIS[key].name


class OfKbroker(Target):
    name = "kbroker"

    def __init__(self, *, keeps: bool = False, **options: Any) -> None:
        self._options = options
        self._directory = tempfile.TemporaryDirectory() if keeps else None
        self._broker = self._new()

    def _new(self) -> Broker:
        return Broker(data_dir=None if self._directory is None else self._directory.name, **self._options)

    def __enter__(self) -> Self:
        self._broker.start()
        self.bootstrap = self._broker.bootstrap_servers
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()
        if self._directory is not None:
            self._directory.cleanup()

    def settings(self) -> Mapping[str, Any]:
        users = self._options.get("users")
        return self._broker.client_settings(next(iter(users)) if users else None).confluent_kafka

    def create(self, topic: str, partitions: int = 1) -> None:
        self._broker.topics.create(topic, partitions)

    def fail(self, api: int, code: int, times: int) -> None:
        self._broker.faults.fail(_api(api), ErrorCode(code), times=times)

    def fail_of(self, topic: str, api: int, code: int, times: int) -> None:
        self._broker.faults.fail(_api(api), ErrorCode(code), times=times, topic=topic)

    def delay(self, api: int, ms: int) -> None:
        self._broker.faults.delay(_api(api), ms / 1000, times=1)

    def lose_answer(self, api: int) -> None:
        self._broker.faults.disconnect(_api(api), "before", times=1)

    def disconnect(self, api: int) -> None:
        self._broker.faults.disconnect(_api(api), "request", times=1)

    def advance(self, hours: float) -> None:
        self._broker.clock.advance(hours=hours)

    def work(self) -> None:
        self._broker.clock.advance(minutes=10)

    def apis_asked(self) -> list[int]:
        keys = {api.name: key for key, api in APIS.items()}
        return [keys[each.api] for each in self._broker.requests]

    def acks_asked(self) -> list[int]:
        return [each.request.acks for each in self._broker.requests.of("Produce")]

    def reset(self) -> None:
        self._broker.reset()

    def snapshot_and_restore(self, between: Callable[[], object]) -> None:
        kept = self._broker.snapshot()
        between()
        self._broker.restore(kept)

    def records(self, topic: str) -> list[bytes | None]:
        return self._broker.topics[topic].values()

    def restart(self) -> None:
        self._broker.stop()
        self._broker = self._new()
        self._broker.start()
        self.bootstrap = self._broker.bootstrap_servers


class OfKbrokerCluster(Target):
    name = "kbroker"

    def __init__(self) -> None:
        self._cluster = Cluster(brokers=3)

    def __enter__(self) -> Self:
        self._cluster.start()
        self.bootstrap = self._cluster.bootstrap_servers
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    def create(self, topic: str, partitions: int = 1) -> None:
        admin = AdminClient({**self.settings(), "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(10)

    def _leader(self, topic: str) -> ClusterBroker:
        brokers = self._cluster.brokers
        return brokers[brokers[1].node.metadata.state.topics[topic].partitions[0].leader]

    def move_leader(self, topic: str) -> None:
        self._leader(topic).stop()

    def kill_leader(self, topic: str) -> None:
        self._leader(topic).kill()


ALLOWED = Acl(allow_principal="User:alice", producer=True, topic="allowed")
