"""`kbroker deadletter replay` of records that their topic refuses: because of its cleanup policy, or of schemas."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbroker import Broker
from kbroker.admin import replays
from tests.cli.conftest import CommandLine
from tests.cli.test_deadletter import contents, died, replay, write
from tests.record_checks.conftest import ORDER, avro, named
from tests.registry_api.conftest import Http

CHECKED = {"confluent.value.schema.validation": "true"}
NO_SCHEMA = "The value begins with the byte 112, not with the id of a schema."
SHIPPED = {"type": "record", "name": "Shipped", "fields": [{"name": "at", "type": "long"}]}


def compacted(cli: CommandLine, name: str) -> str:
    cli.ok("topic", "create", name, "-c", "cleanup.policy=compact")
    return name


@pytest.mark.long
def test_letters_that_their_topic_refuses_are_named_and_passed_over(
    anywhere: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted topic takes no records without a key, on every Kafka."""
    dead, target = f"dlq.{name}", compacted(anywhere, name)
    anywhere.ok("topic", "create", dead)
    write(anywhere, dead, *((0, "k" if index % 3 else None, f"v{index}", died(name, 0, 99)) for index in range(8)))
    said = anywhere.fails("deadletter", "replay", dead, "--execute")
    refusal = f"topic {target} refuses its record: "
    assert said.startswith(f"3 dead letters cannot be replayed, the first at 0:0: {refusal}")
    assert "key" in said, "with the broker's reason"
    assert contents(anywhere, target) == []
    assert len(anywhere.ok("deadletter", "show", dead, "--json").json) == 8, "nothing is marked as replayed"

    monkeypatch.setattr(replays, "_AT_ONCE", 3)
    assert replay(anywhere, dead, "-c", "2", "--skip", "--execute") == [(0, 1, None, None), (0, 1, target, 0)]
    rows = anywhere.ok("deadletter", "replay", dead, "--skip", "--execute", "--json").json
    found = [(row["count"], row["to_topic"], (row["problem"] or "")[: len(refusal)]) for row in rows]
    assert found == [(4, target, ""), (2, None, refusal)]
    values = [line.split()[2] for line in contents(anywhere, target)]
    assert values == ["v1", "v2", "v4", "v5", "v7"]
    assert replay(anywhere, dead) == [], "those that were passed over count as replayed"


def test_another_replay_that_begins_at_a_refusal_is_not_repeated(
    cli: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, target = f"dlq.{name}", compacted(cli, name)
    cli.ok("topic", "create", dead)
    write(cli, dead, (0, None, "v0", died(name, 0, 99)), (0, "k", "v1", died(name, 0, 99)))
    opened = replays.transactional_producer
    times = []

    def overtaken(*arguments: object) -> object:
        times.append(1)
        if len(times) == 2:
            assert len(replay(cli, dead, "--skip", "--execute")) == 2
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replays, "transactional_producer", overtaken)
    said = cli.fails("deadletter", "replay", dead, "--skip", "--execute")
    assert said == f"the dead letters of {dead} were replayed meanwhile; look again"
    assert contents(cli, target) == ["0 k v1 "], "once"


def produced(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for index, value in enumerate(values):
        producer.produce(topic, value, f"k{index}", headers=[("trace", b"7"), ("trace", b"8")])
    assert producer.flush(20) == 0


@pytest.mark.long
def test_records_go_back_once_their_schema_is_registered() -> None:
    with Broker(registry=True) as broker:
        cli, registry = CommandLine(broker.bootstrap_servers), Http(broker.registry_url)
        letters = {"kbroker.schema.validation.deadletter.topic": "bad"}
        broker.topics.create("bad", partitions=1)
        broker.topics.create("orders", config={**CHECKED, "kbroker.schema.validation.level": "parse", **letters})
        registry.register("orders-value", ORDER)
        registry.ok("PUT", "/config/orders-value", {"compatibility": "NONE"})
        produced(broker, "orders", named(2, avro(SHIPPED, {"at": 1})), b"plain", named(2, avro(SHIPPED, {"at": 2})))
        causes = cli.ok("deadletter", "list", "bad", "--json").json
        unknown = "The schema with id 2 is not registered under the subject orders-value."
        assert [(each["count"], each["message"]) for each in causes] == [(2, unknown), (1, NO_SCHEMA)]
        assert cli.fails("deadletter", "replay", "bad", "--execute") == (
            "3 dead letters cannot be replayed, the first at 0:0: topic orders refuses its record: "
            f"{unknown[:-1]}; --skip leaves such dead letters out"
        )
        assert len(contents(cli, "bad")) == 3, "a replay that is refused leaves no letters"
        assert registry.register("orders-value", SHIPPED)["id"] == 2
        assert cli.fails("deadletter", "replay", "bad", "--execute").startswith("1 dead letter cannot be replayed")
        rows = cli.ok("deadletter", "replay", "bad", "--skip", "--execute", "--json").json
        assert [(row["count"], row["to_topic"], row["problem"]) for row in rows] == [
            (2, "orders", None),
            (1, None, f"topic orders refuses its record: {NO_SCHEMA[:-1]}"),
        ]
        taken = broker.topics["orders"].records()
        assert [(each.key, each.value, each.headers) for each in taken] == [
            (b"k0", named(2, avro(SHIPPED, {"at": 1})), (("trace", b"7"), ("trace", b"8"))),
            (b"k2", named(2, avro(SHIPPED, {"at": 2})), (("trace", b"7"), ("trace", b"8"))),
        ]


@pytest.mark.long
def test_bad_letters_in_many_batches() -> None:
    """The client sends no more dead letters after a refusal; a batch is no larger than its topic allows."""
    with Broker() as broker:
        cli = CommandLine(broker.bootstrap_servers)
        config = {"cleanup.policy": "compact", "max.message.bytes": "100000"}
        broker.topics.create("orders", config=config)
        broker.topics.create("bad", partitions=1)
        write(
            cli,
            "bad",
            *((0, "k" if index % 40 == 0 else None, "v" * 20_000, died("orders", 0, 99)) for index in range(100)),
        )
        rows = cli.ok("deadletter", "replay", "bad", "--skip", "--execute", "--json").json
        assert [(row["count"], row["to_topic"]) for row in rows] == [(3, "orders"), (97, None)]
        assert len(contents(cli, "orders")) == 3


@pytest.mark.long
def test_a_topic_that_takes_nothing_has_nothing_against_a_letter(tmp_path: Path) -> None:
    """The error concerns the batch: --skip does not count the dead letter as replayed."""
    with Broker(registry=True, data_dir=tmp_path) as broker:
        broker.topics.create("orders", config=CHECKED)
    with Broker(data_dir=tmp_path) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        broker.topics.create("bad", partitions=1)
        write(cli, "bad", (0, "k", "v", died("orders", 0, 99)))
        said = cli.fails("deadletter", "replay", "bad", "--skip", "--execute")
        assert said == (
            "the dead letters from bad-0 0 on were not replayed: The schemas of the records cannot be checked: "
            "this broker has no schema registry. (INVALID_RECORD)"
        )
        assert len(replay(cli, "bad")) == 1
