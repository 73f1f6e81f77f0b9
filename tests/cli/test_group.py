"""`kbroker group`."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient

from kbroker import Broker
from kbroker.admin import own_request
from tests.cli.conftest import CommandLine

WAIT_S = 20
QUICK = ["-X", "heartbeat.interval.ms=200"]


def offsets(cli, group):
    (told,) = cli.ok("group", "describe", group, "--json").json
    return {(row["topic"], row["partition"]): row["current_offset"] for row in told["partitions"]}


@pytest.fixture
def topic(anywhere, name):
    """Create a topic with two partitions of ten records, one second apart."""
    anywhere.ok("topic", "create", name, "-p", "2", "-c", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": anywhere.bootstrap, "log_level": 0})
    for partition in range(2):
        for n in range(10):
            producer.produce(name, str(n), partition=partition, timestamp=(n + 1) * 1000)
    assert producer.flush(WAIT_S) == 0
    return name


def test_a_groups_life(anywhere, topic):
    group = f"g-{topic}"
    assert anywhere.fails("group", "describe", group).startswith(f"group {group} does not exist; ")
    assert len(anywhere.ok("consume", topic, "-g", group, "--from-beginning", "--until-end", *QUICK).lines) == 20
    listed = {each["group"]: each for each in anywhere.ok("group", "list", "--json").json}
    assert listed[group] == {"group": group, "state": "Empty", "type": "classic", "protocol": "consumer"}
    assert group in anywhere.ok("group", "list", "--state", "empty").text
    assert group not in anywhere.ok("group", "list", "--state", "Stable").text

    anywhere.ok("produce", topic, "-p", "1", stdin=b"a\nb\nc\n")
    (told,) = anywhere.ok("group", "describe", group, "--json").json
    assert told == {
        "group": group,
        "state": "Empty",
        "type": "classic",
        "protocol": "consumer",
        "assignor": None,
        "epoch": None,
        "target_epoch": None,
        "coordinator": 1,
        "members": [],
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "current_offset": 10,
                "log_end_offset": end,
                "lag": end - 10,
                **dict.fromkeys(("member_id", "instance_id", "client_id", "host")),
            }
            for partition, end in ((0, 10), (1, 13))
        ],
    }
    text = anywhere.ok("group", "describe", group).lines
    assert ["lag", "3"] in [line.split() for line in text]
    assert [topic, "1", "10", "13", "3", "-"] in [line.split() for line in text]

    assert anywhere.ok("group", "delete", group).text == f"deleted {group}\n"
    assert anywhere.fails("group", "delete", group).startswith(f"group {group} does not exist; ")


def test_members(anywhere, topic):
    group = f"g-{topic}"
    with anywhere.started("consume", topic, "-g", group, "--from-beginning", "-X", "client.id=reader") as process:
        try:
            for _ in range(20):
                process.stdout.readline()
            deadline = time.monotonic() + WAIT_S
            while offsets(anywhere, group) != {(topic, 0): 10, (topic, 1): 10}:
                assert time.monotonic() < deadline
            (told,) = anywhere.ok("group", "describe", group, "--json").json
            (member,) = told["members"]
            assert (told["state"], told["type"], told["assignor"]) == ("Stable", "classic", "range")
            assert member["client_id"] == "reader"
            assert member["instance_id"] is None
            assert member["host"] == "/127.0.0.1"
            assert member["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
            assert {row["member_id"] for row in told["partitions"]} == {member["member_id"]}
            assert member["member_id"] in anywhere.ok("group", "describe", group).text

            assert "NON_EMPTY_GROUP" in anywhere.fails("group", "delete", group)
            said = anywhere.fails("group", "reset", group, "--topic", topic, "--to-earliest", "--execute")
            assert said.startswith(f"group {group} has members (its state is Stable); stop them first; ")
        finally:
            process.terminate()
            process.wait(WAIT_S)
    assert offsets(anywhere, group) == {(topic, 0): 10, (topic, 1): 10}


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "4"], 4),
        (["--to-offset", "99"], 10),
        (["--shift-by", "3"], 8),
        (["--shift-by", "-2"], 3),
        (["--shift-by", "-99"], 0),
        (["--to-datetime", "1970-01-01T00:00:07"], 6),
        (["--to-datetime", "1970-01-01T01:00:06.500+01:00"], 6),
        (["--to-datetime", "2999-01-01"], 10),
        (["--by-duration", "P1DT2H30M1.5S"], 10),
        (["--by-duration", f"P{'9' * 400}D"], 0),
        (["--to-current"], 5),
    ],
)
def test_reset(anywhere, topic, target, new):
    group = f"g-{topic}"
    anywhere.ok("group", "reset", group, "--topic", topic, "--to-offset", "5", "--execute")
    at_five = {(topic, 0): 5, (topic, 1): 5}
    assert offsets(anywhere, group) == at_five

    shown = anywhere.ok("group", "reset", group, "--topic", f"{topic}:1", *target, "--json")
    change = {"group": group, "topic": topic, "partition": 1, "old_offset": 5, "new_offset": new}
    assert shown.json == [change]
    assert "nothing was changed" in shown.err
    assert offsets(anywhere, group) == at_five

    done = anywhere.ok("group", "reset", group, "--topic", f"{topic}:1", *target, "--json", "--execute")
    assert (done.json, done.err) == ([change], "")
    assert offsets(anywhere, group) == {**at_five, (topic, 1): new}

    done = anywhere.ok("group", "reset", group, "--all-topics", *target, "--execute")
    assert [topic, "0", "5", str(new)] in [line.split()[1:] for line in done.lines]
    assert offsets(anywhere, group)[(topic, 0)] == new


def test_a_reset_by_a_file(anywhere, topic, tmp_path):
    group, file = f"g-{topic}", tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,3\n\n{topic},1,99\n")
    done = anywhere.ok("group", "reset", group, "--from-file", str(file), "--execute", "--json")
    assert [row["new_offset"] for row in done.json] == [3, 10]
    assert offsets(anywhere, group) == {(topic, 0): 3, (topic, 1): 10}


def test_offsets_are_deleted(anywhere, topic):
    group = f"g-{topic}"
    anywhere.ok("group", "reset", group, "--topic", topic, "--to-offset", "5", "--execute")
    anywhere.ok("group", "delete-offsets", group, "--topic", f"{topic}:1")
    assert offsets(anywhere, group) == {(topic, 0): 5}
    assert "no-such-topic does not exist" in anywhere.fails(
        "group", "delete-offsets", group, "--topic", "no-such-topic"
    )
    nobody = anywhere.fails("group", "delete-offsets", f"{group}-not", "--topic", topic)
    assert nobody.startswith(f"group {group}-not does not exist; did you mean {group}")  # and similar configs


def test_offsets_that_members_read_stay(anywhere, topic):
    group = f"g-{topic}"
    consumer = Consumer({"bootstrap.servers": anywhere.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + WAIT_S
    while consumer.poll(0.2) is None:
        assert time.monotonic() < deadline
    consumer.commit(asynchronous=False)
    done = anywhere("group", "delete-offsets", group, "--topic", topic)
    assert done.status == 1
    assert f"in {group}: {topic} 0, 1: " in done.err
    assert done.err.count("GROUP_SUBSCRIBED_TO_TOPIC") == 1
    consumer.close()


def test_a_reset_group_reads_from_there(anywhere, topic):
    group = f"g-{topic}"
    anywhere.ok("group", "reset", group, "--topic", topic, "--to-offset", "8", "--execute")
    printed = anywhere.ok("consume", topic, "-g", group, "--until-end", "-f", "%p:%o\\n", *QUICK).lines
    assert sorted(printed) == ["0:8", "0:9", "1:8", "1:9"]


def test_what_cannot_be_reset(cli, name):
    cli.ok("topic", "create", name)
    reset = ["group", "reset", name]
    said = cli.fails(*reset, "--topic", f"{name}-no", "--to-latest")
    assert said.startswith(f"topic {name}-no does not exist; did you mean {name}")
    assert cli.fails(*reset, "--topic", f"{name}:1", "--to-latest") == f"topic {name} has no partition 1"
    assert "cannot be shifted" in cli.fails(*reset, "--topic", name, "--shift-by", "1")
    assert name not in cli.ok("group", "list").text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "t"], "choose one"),
        (["--topic", "t", "--to-latest", "--to-offset", "3"], "choose one"),
        (["--to-latest"], "--topic"),
        (["--topic", "t", "--all-topics", "--to-latest"], "--topic"),
        (["--topic", "t:x", "--to-latest"], "TOPIC:0,1"),
        (["--topic", "t", "--to-datetime", "soon"], "no time"),
        (["--topic", "t", "--by-duration", "P"], "no duration"),
        (["--topic", "t", "--by-duration", "1h"], "no duration"),
        (["--from-file", "/no/such/file"], "No such file"),
        (["--from-file", __file__], "topic,partition,offset"),
        (["--topic", "t", "--by-duration", "PT1H", "--to-datetime", "2026-01-01"], "exclude each other"),
    ],
)
def test_wrong_usage_of_reset(cli, arguments, said):
    done = cli("group", "reset", "some-group", *arguments)
    assert done.status == 2
    assert said in done.err


def test_offsets_of_a_topic_that_has_gone(cli, name):
    for each in ("kept", "gone"):
        cli.ok("produce", f"{name}-{each}", stdin=b"a\n")
        cli.ok("group", "reset", name, "--topic", f"{name}-{each}", "--to-latest", "--execute")
    cli.ok("topic", "delete", f"{name}-gone")
    (told,) = cli.ok("group", "describe", name, "--json").json
    rows = {row["topic"]: row for row in told["partitions"]}
    assert rows[f"{name}-kept"]["lag"] == 0
    assert rows.get(f"{name}-gone", {"log_end_offset": None})["log_end_offset"] is None


def test_several_groups(cli, name):
    cli.ok("topic", "create", name)
    for each in ("a", "b"):
        cli.ok("group", "reset", f"{name}-{each}", "--topic", name, "--to-latest", "--execute")
    done = cli("group", "describe", f"{name}-a", "nope", f"{name}-b", "--json")
    assert done.status == 1
    assert [group["group"] for group in done.json] == [f"{name}-a", f"{name}-b"]
    assert done.err == "kbroker: group nope does not exist; `kbroker group list` lists the existing groups\n"
    done = cli("group", "delete", f"{name}-a", "nope", f"{name}-b")
    assert done.status == 1
    assert done.lines == [f"deleted {name}-a", f"deleted {name}-b"]
    assert done.err == "kbroker: group nope does not exist; `kbroker group list` lists the existing groups\n"


@pytest.fixture
def reader(anywhere, name):
    """Yield a member of a group of the consumer protocol, which has read and committed a record of two partitions."""
    anywhere.ok("topic", "create", name, "-p", "2")
    anywhere.ok("produce", name, "-p", "0", stdin=b"a\nb\n")
    settings = {"group.id": name, "group.protocol": "consumer", "auto.offset.reset": "earliest", "log_level": 0}
    own = {"enable.auto.commit": False, "client.id": "reader", "group.instance.id": "first"}
    member = Consumer({"bootstrap.servers": anywhere.bootstrap, **own, **settings})
    try:
        member.subscribe([name])
        deadline = time.monotonic() + WAIT_S
        while (message := member.poll(0.2)) is None:
            assert time.monotonic() < deadline
        member.commit(message, asynchronous=False)
        yield member
    finally:
        member.close()


def test_a_group_of_the_consumer_protocol(anywhere, name, reader):
    deadline = time.monotonic() + WAIT_S
    while True:  # the next heartbeat reports a member's partitions
        (told,) = anywhere.ok("group", "describe", name, "--json").json
        if told["members"][0]["partitions"]:
            break
        assert time.monotonic() < deadline
    (member,) = told["members"]
    facts = (told["state"], told["type"], told["protocol"], told["assignor"])
    assert facts == ("Stable", "consumer", "consumer", "uniform")
    assert (member["client_id"], member["instance_id"], member["host"]) == ("reader", "first", "/127.0.0.1")
    assert member["partitions"] == [{"topic": name, "partition": 0}, {"topic": name, "partition": 1}]
    assert [(row["current_offset"], row["lag"]) for row in told["partitions"]] == [(1, 1), (None, None)]
    assert {row["member_id"] for row in told["partitions"]} == {member["member_id"]}
    assert member["member_id"] == reader.memberid()
    lines = [line.split() for line in anywhere.ok("group", "describe", name).lines]
    assert ["type", "consumer"] in lines
    assert ["members", "1"] in lines
    assert [member["member_id"], "first", "reader", "/127.0.0.1", "2"] in lines
    everything = anywhere.ok("group", "describe", name, "-o", "wide").lines
    assert any(line.startswith(member["member_id"]) and f"{name}(0,1)" in line.split() for line in everything)
    assert any(line.split()[-4:] == [member["member_id"], "first", "reader", "/127.0.0.1"] for line in everything)
    assert anywhere.ok("group", "describe", name, "--verbose").lines == everything
    assert ["coordinator", "1"] in [line.split() for line in everything]
    members = anywhere.ok("group", "describe", name, "--members").lines
    assert members[0].split() == ["group", name]
    assert [line.split()[0] for line in members[2:]] == ["MEMBER-ID", member["member_id"]]
    (offsets_only,) = anywhere.ok("group", "describe", name, "--offsets", "--json").json
    assert offsets_only["partitions"] == told["partitions"]
    assert "members" not in offsets_only
    state_only = anywhere.ok("group", "describe", name, "--state").lines
    assert ["state", "Stable"] in [line.split() for line in state_only]
    assert "" not in state_only
    assert name in anywhere.ok("group", "list", "--type", "consumer").text
    assert name not in anywhere.ok("group", "list", "--type", "classic").text
    (listed,) = (each for each in anywhere.ok("group", "list", "--json").json if each["group"] == name)
    assert (listed["type"], listed["protocol"]) == ("consumer", "consumer")
    assert "has members" in anywhere.fails("group", "reset", name, "--all-topics", "--to-latest")


def test_a_broker_that_is_too_old_for_the_question(anywhere, name, reader):
    """The client then uses the requests of Apache Kafka 2.8, which has classic groups only."""
    (told,) = anywhere.ok("group", "describe", name, "--json", "-X", "api.version=2.8").json
    assert (told["state"], told["type"], told["members"]) == ("Stable", None, None)
    assert [(row["current_offset"], row["lag"]) for row in told["partitions"]] == [(1, 1)]
    said = anywhere.fails("group", "describe", f"{name}-no", "-X", "api.version=2.8")
    assert said.startswith(f"group {name}-no does not exist; did you mean {name}")


def test_a_broker_that_has_the_consumer_protocol_switched_off():
    with Broker({"group.coordinator.rebalance.protocols": "classic"}) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        assert cli.fails("group", "describe", "none").startswith("group none does not exist; ")


def test_an_answer_that_cannot_be_read_is_one_line(cli, monkeypatch):
    cli.ok("group", "list")
    monkeypatch.setattr(own_request._Response, "decode", lambda _self, buffer: buffer.read()[:-3])
    assert cli.fails("group", "describe", "none").startswith("the broker's answer cannot be read: ")


def test_all_groups_are_described_reset_and_deleted(name):
    with Broker() as broker:
        cli = CommandLine(broker.bootstrap_servers)
        cli.ok("topic", "create", name)
        cli.ok("produce", name, stdin=b"a\nb\nc\n")
        cli.ok("group", "reset", "one", "two", "--topic", name, "--to-latest", "--execute")
        told = cli.ok("group", "describe", "--all-groups", "--json").json
        assert [each["group"] for each in told] == ["one", "two"]
        dry = cli.ok("group", "reset", "--all-groups", "--all-topics", "--to-earliest", "--dry-run", "--json").json
        changes = [(each["group"], each["old_offset"], each["new_offset"]) for each in dry]
        assert changes == [("one", 3, 0), ("two", 3, 0)]
        exported = cli.ok("group", "reset", "one", "--all-topics", "--to-offset", "2", "--export").text
        assert exported == f"{name},0,2\n"
        assert cli("group", "delete", "--all-groups", stdin=b"n\n").status == 130
        assert cli.ok("group", "delete", "--all-groups", "--yes").lines == ["deleted one", "deleted two"]
        assert cli.ok("group", "list", "--json").json == []


def test_a_reset_that_groups_refuse_is_told_for_each(cli, topic_of_cli):
    done = cli("group", "reset", f"{topic_of_cli}-a", f"{topic_of_cli}-b", "--topic", topic_of_cli, "--shift-by", "1")
    assert done.status == 1
    assert done.err.count("cannot be shifted") == 2


@pytest.fixture
def topic_of_cli(cli, name):
    cli.ok("topic", "create", name)
    return name


def test_a_group_whose_api_is_not_served_is_one_line(cli, monkeypatch):
    listed = {"group_id": "sharers", "group_state": "Empty", "group_type": "share", "protocol_type": "share"}
    monkeypatch.setattr(KafkaAdminClient, "list_groups", lambda *_args, **_filters: [listed])
    monkeypatch.setattr(own_request, "ask_coordinator", lambda *_: None)
    told = cli.fails("group", "describe", "sharers")
    assert told.startswith("this cluster does not serve ShareGroupDescribe; share groups need share.version 1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["describe"], "either the names of groups or --all-groups"),
        (["delete", "g", "--all-groups"], "either the names of groups or --pattern or --all-groups"),
        (["reset", "--all-topics", "--to-latest"], "either the names of groups or --all-groups"),
        (["reset", "g", "--all-topics", "--to-latest", "--execute", "--dry-run"], "exclude each other"),
        (["validate-regex", "(a"], "is no regular expression of RE2"),
        (["describe", "g", "--json", "-o", "yaml"], "--json and -o yaml exclude each other"),
    ],
)
def test_wrong_usage(cli, arguments, said):
    done = cli("group", *arguments)
    assert done.status == 2
    assert said in done.err


def test_a_pattern_is_checked_without_a_cluster():
    assert CommandLine("127.0.0.1:1").ok("group", "validate-regex", "orders-.*").text.startswith("orders-.* is ")


def test_several_groups_are_deleted(anywhere, topic):
    groups = [f"g-{topic}-{number}" for number in range(3)]
    for each in groups:
        anywhere.ok("group", "reset", each, "--topic", topic, "--to-offset", "5", "--execute")
    done = anywhere("group", "delete", f"{groups[0]}-not", groups[0])
    assert (done.status, done.lines) == (1, [f"deleted {groups[0]}"])
    assert anywhere.ok("group", "delete", groups[0], "--if-exists").text == ""
    pattern = ["--pattern", f"g-{topic}-[0-9]", "--yes"]
    assert anywhere.ok("group", "delete-offsets", *pattern, "--topic", f"{topic}:1").lines == [
        f"deleted the offsets of {topic}:1 in {each}" for each in groups[1:]
    ]
    assert anywhere.ok("group", "delete", *pattern).lines == [f"deleted {each}" for each in groups[1:]]
    assert "give either the names of groups or --pattern or --all-groups" in anywhere("group", "delete").err


def test_a_question_that_nobody_answers_names_the_remedy(anywhere, topic):
    group = f"g-{topic}"
    anywhere.ok("group", "reset", group, "--topic", topic, "--to-offset", "5", "--execute")
    done = anywhere("group", "delete", "--pattern", group, stdin=b"")
    assert done.status == 1
    assert f"delete {group}? [y/N]" in done.err
    assert done.err.rstrip().endswith("nothing was changed; --yes does it without asking")
    assert group in anywhere.ok("group", "list").text
