"""What a stranger on a plain listener can do with names in inter-broker requests: nothing outside the broker's data."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from tests.log.directories.test_names_as_paths import NAMES

_EPOCH = 1  # the controller's own: with a later one, the brokers would ignore the controller


def led_by(node_id: int, index: int = 0) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        partition_index=index, controller_epoch=_EPOCH, leader=node_id, leader_epoch=9, isr=[node_id],
        partition_epoch=9, replicas=[node_id], is_new=True,
    )  # fmt: skip


def paths(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.long
def test_names_in_requests_between_brokers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "evil-0").mkdir()
    (tmp_path / "evil-0" / "precious.txt").write_text("not a log")
    with Cluster(3, data_dir=tmp_path / "cluster") as cluster:
        cluster.topics.create("t", partitions=1, replication_factor=3)
        broker = cluster.brokers[1]
        names = [*NAMES, f"../{Path(cluster.brokers[2].data_dir).name}/t", str(tmp_path / "evil")]
        before = paths(tmp_path)
        caplog.set_level(logging.WARNING)
        with WireClient(broker.bootstrap_servers) as client:
            for name in names:
                asked = LeaderAndIsrRequest(
                    controller_id=1, controller_epoch=_EPOCH, broker_epoch=-1, type=1, live_leaders=[],
                    topic_states=[LeaderAndIsrTopicState(name, bytes(range(16)), [led_by(1), led_by(1, -1)])],
                )  # fmt: skip
                answer = client.ask(asked, 7)
                codes = [each.error_code for topic in answer.topics for each in topic.partition_errors]
                assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2, name
                stopped = StopReplicaRequest(
                    controller_id=1, controller_epoch=_EPOCH, broker_epoch=-1,
                    topic_states=[StopReplicaTopicState(name, [StopReplicaPartitionState(0, -2, True)])],
                )  # fmt: skip
                answer = client.ask(stopped, 4)
                assert [each.error_code for each in answer.partition_errors] == [ErrorCode.UNKNOWN_SERVER_ERROR], name
        assert paths(tmp_path) - before <= {str(path) for path in paths(tmp_path) if "checkpoint" in path}
        assert not before - paths(tmp_path)
        assert not [record for record in caplog.records if record.exc_info], "a traceback"
    assert (tmp_path / "evil-0" / "precious.txt").read_text() == "not a log"
