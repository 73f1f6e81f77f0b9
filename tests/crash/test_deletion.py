"""kill -9 in the middle of the deletion of a large topic: the next start finishes it, and touches nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compat_tests.harness.brokers import KBroker
from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.controller.controller import DELETED_TOPICS
from kbroker.failpoints import VARIABLE
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState

PARTITIONS = 80


class _Armed(KBroker):
    """A broker with two log directories that ends once a given number of partitions is renamed."""

    renamed = 0

    def _command(self) -> list[str]:
        command = super()._command()
        where = command.index("--data-dir")
        directories = f"log.dirs={self.directory / 'a'},{self.directory / 'b'}"
        return [*command[:where], "--set", directories, *command[where + 2 :]]

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VARIABLE: f"partition.renamed:{self.renamed}" if self.renamed else ""}


def _left(directory: Path, topic: str) -> list[str]:
    return [path.name for each in "ab" for path in (directory / each).glob(f"{topic}-*")]


@pytest.mark.parametrize("renamed", [1, 40, 70])
def test_a_deletion_that_was_cut_off_is_ended_by_the_next_start(tmp_path: Path, renamed: int) -> None:
    broker = _Armed(tmp_path)
    broker.renamed = renamed
    broker.start()
    try:
        with WireClient(broker.bootstrap) as client:
            topics = [CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1) for name in "dk"]
            created = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=10000), 5)
            assert [topic.error_code for topic in created.topics] == [0, 0]
            try:
                client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="d")], timeout_ms=10000), 6)
            except (OSError, EOFError):
                assert renamed < 64, "the deletion is answered before all is renamed"
        assert broker.died_by_kill()
    finally:
        broker.kill()
    assert len([name for name in _left(tmp_path, "d") if not name.endswith("-delete")]) == PARTITIONS - renamed
    foreign = tmp_path / "a" / "d-99"
    foreign.mkdir()
    config = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    with Broker(config=config) as again:
        controller = again.node.controller
        deadline = time.monotonic() + 20
        while (controller.deleted_topics or _left(tmp_path, "d") != ["d-99"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _left(tmp_path, "d") == ["d-99"]
        assert not controller.deleted_topics
        assert again.node.store.children(DELETED_TOPICS) == []
        assert len(_left(tmp_path, "k")) == PARTITIONS
