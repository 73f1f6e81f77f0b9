"""Inter-broker requests with odd names, numbers and epochs: no traceback, and clients are served.

One seed, REQUESTS requests to one broker of three. A canary on a partition that no request names produces and fetches
all the time. Kafka trusts the sender of such a request, so any broker or none may lead the named partitions afterwards.
"""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.wire.client import CLOSED, WireClient
from kbroker import Cluster
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
    ControlledShutdownRequest,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kbroker.protocol.messages.logs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.test_fuzz import Canary
from tests.log.directories.test_names_as_paths import NAMES
from tests.tries import tries

SEED = 20261126
REQUESTS = tries(1500)
EPOCH = 1
"""The controller's own epoch. A later epoch would be accepted, and the broker would then ignore the controller."""
QUICK = {"controlled.shutdown.enable": "false", "offsets.commit.timeout.ms": "10", "request.timeout.ms": "20"}
"""Markers wait for in-sync replicas that may not exist."""
NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 3, 7, 1000, 2**31 - 1)
LONGS = (-(2**63), -2, -1, 0, 1, 5, 2**63 - 1)


class Odd:
    """Requests from one seed; `ids` are those of existing topics."""

    def __init__(self, seed: int, ids: list[bytes]) -> None:
        self._rng = random.Random(seed)
        self._ids = [bytes(16), b"\xff" * 16, *ids]
        self._makers: list[tuple[Callable[[], Any], tuple[int, ...]]] = [
            (self.leader_and_isr, (5, 6, 7)), (self.stop_replica, (3, 4)), (self.update_metadata, (7, 8)),
            (self.controlled_shutdown, (3,)), (self.alter_partition, (2, 3)), (self.markers, (1, 2)),
            (self.offset_for_leader_epoch, (2, 3, 4)), (self.fetch, (4, 11, 12)), (self.fetch_by_id, (13, 15, 17)),
            (self.allocate_producer_ids, (0,)), (self.add_partitions, (4, 5)),
        ]  # fmt: skip

    def next(self) -> tuple[Any, int]:
        """Return a request and its version."""
        make, versions = self._rng.choice(self._makers)
        return make(), self._rng.choice(versions)

    def _number(self) -> int:
        return self._rng.choice(NUMBERS)

    def _long(self) -> int:
        return self._rng.choice(LONGS)

    def _name(self) -> str:
        return self._rng.choice(("t", "t", "u", "__consumer_offsets", "__transaction_state", "missing", *NAMES))

    def _index(self) -> int:
        return self._rng.choice((0, 0, 1, *NUMBERS))

    def _brokers(self) -> list[int]:
        return [self._rng.choice((1, 2, 3, *NUMBERS)) for _ in range(self._rng.randrange(4))]

    def _flag(self) -> bool:
        return self._rng.random() < 0.5

    def _of_controller(self) -> dict[str, Any]:
        return {
            "controller_id": self._number(),
            "is_k_raft_controller": self._flag(),
            "controller_epoch": self._rng.choice((EPOCH, EPOCH, EPOCH, 0, -1, -(2**31))),
            "broker_epoch": self._rng.choice((-1, -1, -1, 2**63 - 1, 0, -(2**63))),
        }

    def _some(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self._rng.randrange(4))]

    def leader_and_isr(self) -> LeaderAndIsrRequest:
        def state() -> LeaderAndIsrPartitionState:
            return LeaderAndIsrPartitionState(
                partition_index=self._index(), controller_epoch=self._number(), leader=self._number(),
                leader_epoch=self._number(), isr=self._brokers(), partition_epoch=self._number(),
                replicas=[1, *self._brokers()] if self._flag() else self._brokers(), adding_replicas=self._brokers(),
                removing_replicas=self._brokers(), is_new=self._flag(),
                leader_recovery_state=self._rng.choice((-128, 0, 1, 127)),
            )  # fmt: skip

        return LeaderAndIsrRequest(
            **self._of_controller(),
            type=self._rng.choice((-128, 0, 1, 2, 127)),
            topic_states=self._some(
                lambda: LeaderAndIsrTopicState(self._name(), self._rng.choice(self._ids), self._some(state))
            ),
            live_leaders=self._some(
                lambda: LeaderAndIsrLiveLeader(self._number(), self._rng.choice(("", "127.0.0.1", "\0", "a b")), 1)
            ),
        )

    def stop_replica(self) -> StopReplicaRequest:
        return StopReplicaRequest(
            **self._of_controller(),
            topic_states=self._some(
                lambda: StopReplicaTopicState(
                    self._name(),
                    self._some(lambda: StopReplicaPartitionState(self._index(), self._number(), self._flag())),
                )
            ),
        )

    def update_metadata(self) -> UpdateMetadataRequest:
        def state() -> UpdateMetadataPartitionState:
            return UpdateMetadataPartitionState(
                partition_index=self._index(), controller_epoch=self._number(), leader=self._number(),
                leader_epoch=self._number(), isr=self._brokers(), zk_version=self._number(),
                replicas=self._brokers(), offline_replicas=self._brokers(),
            )  # fmt: skip

        def broker() -> UpdateMetadataBroker:
            endpoint = UpdateMetadataEndpoint(
                self._number(), self._rng.choice(("", "127.0.0.1", "a b")), self._rng.choice(("", "PLAINTEXT", "X")), 0
            )
            return UpdateMetadataBroker(self._number(), [endpoint] * self._rng.randrange(3), None)

        return UpdateMetadataRequest(
            **self._of_controller(),
            type=self._rng.choice((0, 1, 2)),
            topic_states=self._some(
                lambda: UpdateMetadataTopicState(self._name(), self._rng.choice(self._ids), self._some(state))
            ),
            live_brokers=self._some(broker),
        )

    def controlled_shutdown(self) -> ControlledShutdownRequest:
        return ControlledShutdownRequest(broker_id=self._rng.choice((-(2**31), -1, 0, 7, 2**31 - 1)), broker_epoch=-1)

    def allocate_producer_ids(self) -> AllocateProducerIdsRequest:
        return AllocateProducerIdsRequest(broker_id=self._number(), broker_epoch=self._long())

    def alter_partition(self) -> AlterPartitionRequest:
        def data() -> AlterPartitionData:
            isr = self._brokers()
            return AlterPartitionData(
                partition_index=self._index(), leader_epoch=self._number(), new_isr=isr,
                new_isr_with_epochs=[BrokerState(each, self._long()) for each in isr],
                leader_recovery_state=self._rng.choice((-1, 0, 1, 2)), partition_epoch=self._number(),
            )  # fmt: skip

        return AlterPartitionRequest(
            broker_id=self._number(),
            broker_epoch=self._long(),
            topics=self._some(lambda: AlterPartitionTopic(self._rng.choice(self._ids), self._some(data))),
        )

    def markers(self) -> WriteTxnMarkersRequest:
        def marker() -> WritableTxnMarker:
            return WritableTxnMarker(
                producer_id=self._long(), producer_epoch=self._rng.choice((-(2**15), -1, 0, 1, 2**15 - 1)),
                transaction_result=self._flag(),
                topics=self._some(
                    lambda: WritableTxnMarkerTopic(self._name(), [self._index() for _ in range(3)])
                ),
                coordinator_epoch=self._number(), transaction_version=self._rng.choice((-128, -1, 0, 1, 2, 127)),
            )  # fmt: skip

        return WriteTxnMarkersRequest(markers=self._some(marker))

    def offset_for_leader_epoch(self) -> OffsetForLeaderEpochRequest:
        def partition() -> OffsetForLeaderPartition:
            return OffsetForLeaderPartition(self._index(), self._number(), self._number())

        return OffsetForLeaderEpochRequest(
            replica_id=self._number(),
            topics=self._some(lambda: OffsetForLeaderTopic(self._name(), self._some(partition))),
        )

    def _fetched(self) -> FetchPartition:
        return FetchPartition(
            partition=self._index(), current_leader_epoch=self._number(), fetch_offset=self._long(),
            last_fetched_epoch=self._number(), log_start_offset=self._long(), partition_max_bytes=self._number(),
        )  # fmt: skip

    def fetch(self) -> FetchRequest:
        return FetchRequest(
            replica_id=self._number(), max_wait_ms=0, min_bytes=self._number(), max_bytes=self._number(),
            isolation_level=self._rng.choice((0, 1, 127)), session_id=0, session_epoch=-1,
            topics=self._some(lambda: FetchTopic(topic=self._name(), partitions=self._some(self._fetched))),
        )  # fmt: skip

    def fetch_by_id(self) -> FetchRequest:
        return FetchRequest(
            replica_id=self._number(), replica_state=ReplicaState(self._number(), self._long()),
            max_wait_ms=0, min_bytes=self._number(), max_bytes=self._number(), session_id=0, session_epoch=-1,
            topics=self._some(
                lambda: FetchTopic(topic_id=self._rng.choice(self._ids), partitions=self._some(self._fetched))
            ),
        )  # fmt: skip

    def add_partitions(self) -> AddPartitionsToTxnRequest:
        def transaction() -> AddPartitionsToTxnTransaction:
            return AddPartitionsToTxnTransaction(
                transactional_id=self._rng.choice(("", "x", *NAMES)), producer_id=self._long(),
                producer_epoch=self._rng.choice((-1, 0, 2**15 - 1)), verify_only=self._flag(),
                topics=self._some(lambda: AddPartitionsToTxnTopic(self._name(), [self._index() for _ in range(2)])),
            )  # fmt: skip

        return AddPartitionsToTxnRequest(transactions=self._some(transaction))


def test_odd_requests_between_brokers_harm_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    print(f"seed {SEED}, {REQUESTS} requests")
    with Cluster(3, QUICK, data_dir=tmp_path / "cluster") as cluster:
        cluster.topics.create("t", partitions=3, replication_factor=3)
        broker = cluster.brokers[1]
        canary = Canary(broker.bootstrap_servers, 1)
        assert broker.node.controller.is_active, "or it would refuse what only a controller does"
        odd = Odd(SEED, [topic.topic_id for topic in broker.node.member.state.topics.values() if topic.name == "t"])
        client = WireClient(broker.bootstrap_servers)
        for number in range(REQUESTS):
            request, version = odd.next()
            answer = client.ask(request, version)
            assert answer != CLOSED, (number, version, request)
            if number % 100 == 0:
                canary.sing()
        canary.sing()
        client.close()
        gc.collect()  # only then is the failure reported that nobody waited for
        broken = [f"{each.name}: {each.getMessage()}" for each in caplog.records if each.exc_info]
        assert not broken, broken[:5]
        canary.client.close()
