"""What is told of topics whose leaders are gone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError

from kbroker.admin import topics


@pytest.mark.parametrize("error", [KafkaConnectionError("111 ECONNREFUSED"), NodeNotReadyError(1)])
def test_what_a_dead_leader_leads_is_described_without_its_offsets(error):
    class Admin:
        def list_partition_offsets(self, wanted):
            if any(each.partition == 1 for each in wanted):
                raise error
            return {each: SimpleNamespace(offset=7) for each in wanted}

        def describe_configs(self, _resources):
            return {}

    partitions = [
        {"partition_index": index, "leader_id": leader, "replica_nodes": [1, 2], "isr_nodes": [2]}
        for index, leader in enumerate((2, 1, -1))
    ]
    found = topics.describe_topic(Admin(), {"name": "t", "is_internal": False, "partitions": partitions})
    assert [(each["leader"], each["latest"]) for each in found["partitions"]] == [(2, 7), (1, None), (None, None)]
