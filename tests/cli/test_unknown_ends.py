"""A leader that does not know its partition's end yet (KIP-207): the verbs show everything else."""

from __future__ import annotations

import pytest

from kbroker import Broker
from kbroker.admin.connection import Connection
from kbroker.admin.group_offsets import committed_offsets
from tests.cli.conftest import CommandLine

BEHIND = "OFFSET_NOT_AVAILABLE"


@pytest.fixture
def one_is_behind():
    """Create a topic of two partitions that a group has read; the second leader does not know its end."""
    with Broker({"num.partitions": "2"}) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        cli.ok("topic", "create", "t")
        for partition in ("0", "1"):
            cli.ok("produce", "t", "-p", partition, stdin=b"x\n")
        cli.ok("group", "reset", "g", "--topic", "t", "--to-latest", "--execute")
        with broker.faults.fail("ListOffsets", BEHIND, topic="t", partition=1):
            yield cli, broker


def test_a_topic_is_described_without_it(one_is_behind):
    cli, _ = one_is_behind
    (told,) = cli.ok("topic", "describe", "t", "--json").json
    assert [each["latest"] for each in told["partitions"]] == [1, None]


def test_a_group_is_described_without_it(one_is_behind):
    cli, _ = one_is_behind
    (told,) = cli.ok("group", "describe", "g", "--json").json
    assert [(each["current_offset"], each["lag"]) for each in told["partitions"]] == [(1, 0), (1, None)]


def test_offsets_are_listed_and_it_is_told(one_is_behind):
    cli, _ = one_is_behind
    done = cli("topic", "offsets", "t", "--json")
    assert [each["offset"] for each in done.json] == [1, None]
    assert done.status == 1
    assert "t-1: The leader high watermark has not caught up" in done.err
    assert BEHIND in done.err


def test_a_reset_to_where_nobody_knows_moves_nothing(one_is_behind):
    cli, broker = one_is_behind
    done = cli("group", "reset", "g", "--topic", "t", "--to-earliest", "--execute")
    assert (done.status, done.err) == (1, "kbroker: the leader of t-1 does not know the end offset yet\n")
    with Connection(broker.bootstrap_servers, {}).admin() as admin:
        assert set(committed_offsets(admin, "g").values()) == {1}
