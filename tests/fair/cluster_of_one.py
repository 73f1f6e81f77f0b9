"""A cluster of one broker, with a tree of znodes in memory: `python -m tests.fair.cluster_of_one DATA_DIR READY_FILE`.

Writes its addresses as `kbroker start --ready-file` does, and ends on SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from kbroker.broker.cluster_node import ClusterNode
from kbroker.broker.garbage import GarbageCollection
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.network.loop_watch import new_event_loop

_SETTINGS = {
    "broker.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "zookeeper.connect": "in memory",
}


def say_ready(ready_file: Path, node: ClusterNode) -> None:
    ready_file.write_text(json.dumps({"bootstrap_servers": node.bootstrap_servers}))


async def serve(data_dir: str, ready_file: Path) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    node = await ClusterNode.start(BrokerConfig({**_SETTINGS, "log.dirs": data_dir}), tree=MemoryEnsemble().connect())
    garbage = GarbageCollection(asyncio.get_running_loop())
    garbage.begin()
    try:
        say_ready(ready_file, node)
        await stopped.wait()
    finally:
        garbage.close()
        await node.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(sys.argv[1], Path(sys.argv[2])))
