"""`kbroker transaction`: transactions are listed, described and ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from kbroker import Broker
from tests.cli.conftest import CommandLine
from tests.txn.test_hanging import SETTINGS, forget, leave_open


@contextmanager
def open_transaction(cli: CommandLine) -> Iterator[tuple[str, str, Producer]]:
    """Yield a transactional id, the topic into which it has written one record, and the producer."""
    unique = uuid.uuid4().hex[:8]
    topic, name = f"t-{unique}", f"id-{unique}"
    cli.ok("topic", "create", topic)
    producer = Producer({"bootstrap.servers": cli.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    yield name, topic, producer
    with suppress(KafkaException):  # it was fenced
        producer.close()


def test_what_is_open_is_listed_described_and_terminated(anywhere: CommandLine) -> None:
    with open_transaction(anywhere) as (name, topic, producer):
        pattern = ("--transactional-id-pattern", f"{name[:6]}.*")
        found = anywhere.ok("transaction", "list", "--state", "Ongoing", *pattern, "--json").json
        (row,) = [each for each in found if each["transactional_id"] == name]
        assert row["state"] == "Ongoing"
        assert anywhere.ok("transaction", "list", "--duration-filter", "3600000", *pattern, "--json").json == []
        assert anywhere.ok("transaction", "list", "--producer-id", str(row["producer_id"]), "--json").json == [row]
        told = anywhere.ok("transaction", "describe", name, "--json").json
        assert (told["state"], told["producer_id"]) == ("Ongoing", row["producer_id"])
        assert told["partitions"] == [{"topic": topic, "partition": 0}]
        (state,) = anywhere.ok("transaction", "producers", topic, "0", "--json").json
        assert (state["producer_id"], state["start_offset"]) == (row["producer_id"], 0)
        assert anywhere.ok("transaction", "hanging", "--max-transaction-timeout", "0", "--topic", topic).lines[1:] == []
        anywhere.ok("transaction", "terminate", name)
        told = anywhere.ok("transaction", "describe", name, "--json").json
        assert told["state"] in ("Empty", "CompleteAbort")
        (state,) = anywhere.ok("transaction", "producers", topic, "0", "--json").json
        assert state["start_offset"] is None
        with pytest.raises(KafkaException):
            producer.commit_transaction(30)


def test_what_a_coordinator_knows_is_aborted_by_force_only(anywhere: CommandLine) -> None:
    with open_transaction(anywhere) as (name, topic, _):
        said = anywhere.fails("transaction", "abort", topic, "0", "--start-offset", "0")
        assert said.startswith(f"it does not hang: {name} is Ongoing. `kbroker transaction terminate {name}`")
        assert "begin at 0" in anywhere.fails("transaction", "abort", topic, "0", "--start-offset", "5")
        anywhere.ok("transaction", "abort", topic, "0", "--start-offset", "0", "--force")
        (state,) = anywhere.ok("transaction", "producers", topic, "0", "--json").json
        assert state["start_offset"] is None
        assert "none is open there" in anywhere.fails("transaction", "abort", topic, "0", "--start-offset", "0")
        anywhere.ok("transaction", "terminate", name)


def test_what_nobody_will_end_is_found_and_aborted(tmp_path: Path) -> None:
    topic, producers = leave_open(tmp_path)
    forget(tmp_path)
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        look = ("transaction", "hanging", "--max-transaction-timeout", "0")
        found = cli.ok(*look, "--json").json
        assert {each["producer_id"] for each in found} == {each.producer_id for each in producers}
        assert cli.ok("transaction", "hanging", "--json").json == []
        assert cli.ok(*look, "--broker", "99", "--json").json == []
        for each in found:
            cli.ok("transaction", "abort", topic, str(each["partition"]), "--start-offset", str(each["start_offset"]))
        assert cli.ok(*look, "--topic", topic, "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("describe", "nobody"), "no coordinator knows a transactional id nobody"),
        (("terminate", "nobody"), "no coordinator knows a transactional id nobody"),
        (("producers", "no-such-topic", "0"), "no-such-topic"),
        (("list", "--state", "Asleep"), "no such state: Asleep"),
        (("abort", "no-such-topic", "0", "--start-offset", "0"), "no-such-topic"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(anywhere: CommandLine, arguments: tuple[str, ...], line: str) -> None:
    assert line in anywhere.fails("transaction", *arguments)


def test_tables_read_well(cli: CommandLine) -> None:
    with open_transaction(cli) as (name, topic, _):
        header, *rows = cli.ok("transaction", "list").lines
        assert header.split() == ["TRANSACTIONAL", "ID", "COORDINATOR", "PRODUCER", "ID", "STATE"]
        assert any(row.startswith(name) and row.endswith("Ongoing") for row in rows)
        text = cli.ok("transaction", "describe", name).text
        assert "s ago)" in text
        assert topic in text
        cli.ok("transaction", "terminate", name)


def test_a_partition_needs_its_topic(cli: CommandLine) -> None:
    done = cli("transaction", "hanging", "--partition", "0")
    assert done.status == 2
    assert "--partition needs --topic" in done.err
