"""`kbroker config`: configs are listed, described, set and unset."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from kbroker import Broker
from tests.cli.conftest import CommandLine


@pytest.fixture
def topic(anywhere: CommandLine) -> str:
    name = f"c-{uuid.uuid4().hex[:8]}"
    anywhere.ok("topic", "create", name)
    return name


def own_id(cli: CommandLine) -> str:
    return str(cli.ok("broker", "list", "--json").json[0]["id"])


def test_a_topics_configs_from_set_to_unset(anywhere: CommandLine, topic: str) -> None:
    of = ("--topic", topic)
    assert anywhere.ok("config", "describe", *of, "--json").json == []
    done = anywhere.ok("config", "set", *of, "retention.ms=5000", "cleanup.policy=compact,delete")
    assert done.text == f"topic {topic}: retention.ms=5000, cleanup.policy=compact,delete\n"
    one, two = anywhere.ok("config", "describe", *of, "--json").json
    assert (one["key"], one["value"]) == ("cleanup.policy", "compact,delete")
    assert two == {
        "key": "retention.ms",
        "value": "5000",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "read_only": False,
        "sensitive": False,
        "type": "LONG",
    }
    anywhere.ok("config", "unset", *of, "retention.ms")
    assert [each["key"] for each in anywhere.ok("config", "describe", *of, "--json").json] == ["cleanup.policy"]
    everything = anywhere.ok("config", "describe", *of, "--all", "--json").json
    assert len(everything) > 20
    (asked,) = anywhere.ok("config", "describe", *of, "retention.ms", "--documentation", "--json").json
    assert asked["source"] == "DEFAULT_CONFIG"
    assert len(asked["documentation"]) > 20


def test_nothing_is_set_by_a_dry_run_nor_where_one_cannot_be(anywhere: CommandLine, topic: str) -> None:
    of = ("--topic", topic)
    assert "could be set" in anywhere.ok("config", "set", *of, "--dry-run", "retention.ms=5000").text
    said = anywhere.fails("config", "set", *of, "retention.ms=5000", "retention.mss=6")
    assert "retention.mss" in said
    assert said.endswith("did you mean retention.ms?")
    assert "segment.bytes" in anywhere.fails("config", "set", *of, "retention.ms=5000", "segment.bytes=1")
    assert anywhere.ok("config", "describe", *of, "--json").json == []
    assert "could be" in anywhere.ok("config", "unset", *of, "--dry-run", "retention.ms").text


def test_brokers_loggers_and_groups_have_some(anywhere: CommandLine) -> None:
    broker, group = own_id(anywhere), f"g-{uuid.uuid4().hex[:8]}"
    levels = anywhere.ok("config", "describe", "--logger", broker, "--json").json
    logger = next(each["key"] for each in levels if each["key"] != "root")  # whose level cannot be unset
    for of, key, value in [
        (("--broker", broker), "log.cleaner.threads", "2"),
        (("--all-brokers",), "log.cleaner.threads", "2"),
        (("--group", group), "consumer.session.timeout.ms", "46000"),
        (("--logger", broker), logger, "DEBUG"),
    ]:
        anywhere.ok("config", "set", *of, f"{key}={value}")
        (found,) = anywhere.ok("config", "describe", *of, key, "--json").json
        assert found["value"] == value
        if "--group" in of:
            assert {"type": "group", "name": group} in anywhere.ok("config", "list", "--json").json
        anywhere.ok("config", "unset", *of, key)
    kinds = {each["type"] for each in anywhere.ok("config", "list", "--type", "broker", "--json").json}
    assert kinds == {"broker"}


def test_a_value_that_no_request_can_carry_is_refused(cli: CommandLine, name: str) -> None:
    for verb in (["topic", "create", name, "-c"], ["config", "set", "--group", name]):
        told = cli.fails(*verb, f"share.filter={'x' * 40_000}")
        assert told == "the value of share.filter has 40000 bytes, and a request can carry 32767"


def test_tables_read_well(cli: CommandLine) -> None:
    cli.ok("topic", "create", "tables-of-configs", "--config", "retention.ms=7000")
    header, row = cli.ok("config", "describe", "--topic", "tables-of-configs").lines
    assert header.split() == ["KEY", "VALUE", "SOURCE"]
    assert row.split() == ["retention.ms", "7000", "DYNAMIC_TOPIC_CONFIG"]
    assert "topic" in cli.ok("config", "list", "--type", "topic").text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("describe", "--topic", "no-such-topic"), "cannot describe topic no-such-topic"),
        (("set", "--topic", "no-such-topic", "retention.ms=1"), "no-such-topic"),
        (("describe", "--broker", "7777"), "7777"),
    ],
)
def test_what_is_not_there_is_told_in_a_line(anywhere: CommandLine, arguments: tuple[str, ...], line: str) -> None:
    assert line in anywhere.fails("config", *arguments)


def test_a_key_that_there_is_not_is_told_with_one_that_is_near(cli: CommandLine) -> None:
    cli.ok("topic", "create", "near-configs")
    said = cli.fails("config", "describe", "--topic", "near-configs", "retention.mss")
    assert said == "topic near-configs has no config retention.mss; did you mean retention.ms?"


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe",),
        ("describe", "--topic", "a", "--group", "b"),
        ("describe", "--topic", ""),
        ("set", "--topic", "a", "retention.ms"),
        ("set", "--topic", "a"),
    ],
)
def test_what_is_asked_must_be_said(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    assert cli("config", *arguments).status == 2


def test_configs_of_a_file(anywhere, name, tmp_path):
    anywhere.ok("topic", "create", name)
    file = tmp_path / "own.properties"
    file.write_text("retention.ms=1000\nsegment.bytes = 2097152\n")
    anywhere.ok("config", "set", "--topic", name, "--add-config-file", str(file), "max.message.bytes=99999")
    told = {each["key"]: each["value"] for each in anywhere.ok("config", "describe", "--topic", name, "--json").json}
    assert told == {"retention.ms": "1000", "segment.bytes": "2097152", "max.message.bytes": "99999"}
    assert anywhere("config", "set", "--topic", name).status == 2


def test_a_secret_that_is_set_is_not_printed(anywhere: CommandLine) -> None:
    key = "listener.name.internal.ssl.keystore.password"
    of = ("--broker", own_id(anywhere))
    done = anywhere("config", "set", *of, f"{key}=hunter2", "--dry-run")
    assert "hunter2" not in done.text + done.err
    assert f"{key}=(secret) could be set" in done.text


@pytest.mark.long
def test_a_config_that_lets_nobody_connect_is_unset_while_the_node_is_stopped(tmp_path: Path) -> None:
    data, cli = str(tmp_path / "data"), CommandLine("127.0.0.1:1")
    limits = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:0"}
    with Broker(data_dir=data) as broker:
        mine = ("--broker", str(own_id(CommandLine(broker.bootstrap_servers))))
        pairs = [f"{key}={value}" for key, value in limits.items()]
        CommandLine(broker.bootstrap_servers)("config", "set", *mine, *pairs)
        assert "in use" in cli.fails("config", "unset", "--offline", data, *mine, *limits)
    rows = cli.ok("config", "describe", "--offline", data, *mine, "--json").json
    assert {row["key"]: row["value"] for row in rows} == limits
    assert "retention.ms is not set" in cli.fails("config", "unset", "--offline", data, *mine, "retention.ms")
    assert "takes --broker" in cli("config", "unset", "--offline", data, "--topic", "t", "retention.ms").err
    assert "could be" in cli.ok("config", "unset", "--offline", data, *mine, "--dry-run", *limits).text
    with Broker(data_dir=data) as broker:
        CommandLine(broker.bootstrap_servers).fails("broker", "list")
    cli.ok("config", "unset", "--offline", data, *mine, *limits)
    assert cli.ok("config", "describe", "--offline", data, *mine, "--json").json == []
    with Broker(data_dir=data) as broker:
        assert own_id(CommandLine(broker.bootstrap_servers)) == mine[1]


def test_a_directory_without_metadata_has_no_configs(tmp_path: Path) -> None:
    cli = CommandLine("127.0.0.1:1")
    assert "meta.properties" in cli.fails("config", "unset", "--offline", str(tmp_path), "--all-brokers", "a")
