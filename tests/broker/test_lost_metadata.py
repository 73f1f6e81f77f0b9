"""Partitions without the metadata that name their topics: no broker starts as if it were empty."""

from __future__ import annotations

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.cli.main import main
from tests.broker.test_endings import create


@pytest.mark.parametrize("emptied", [True, False])
def test_a_lost_journal_stops_the_start_and_the_topics_can_be_adopted(tmp_path, emptied):
    data = tmp_path / "data"
    with Broker(data_dir=str(data)) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        assert client.ask(produce_request("t", batch()), 9).responses[0].partition_responses[0].error_code == 0
    journal = data / "__metadata.journal"
    journal.unlink()
    if emptied:
        journal.touch()
    with pytest.raises(Exception, match=r"has no metadata, although .* has partitions such as t-0: .*log adopt"):
        Broker(data_dir=str(data)).start()
    assert main(["log", "adopt", str(data)]) in (0, None)
    with Broker(data_dir=str(data)) as broker:
        assert broker.node.replicas.leader("t", 0).log.log_end_offset == 1
