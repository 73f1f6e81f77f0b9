"""`kbroker topic`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest


def test_a_topics_life(anywhere, name):
    made = anywhere.ok(
        "topic", "create", name, "-p", "3", "-r", "1", "-c", "retention.ms=1000", "-c", "segment.bytes=1048576"
    )
    assert made.text == f"created {name}\n"
    listed = {topic["name"]: topic for topic in anywhere.ok("topic", "list", "--json").json}
    assert listed[name] == {
        "name": name,
        "partitions": 3,
        "replicas": 1,
        "internal": False,
        "min_insync_replicas": "1",
        "cleanup_policy": "delete",
        "retention_ms": "1000",
        "bytes": 0,
    }

    anywhere.ok("produce", name, "-p", "1", stdin=b"a\nb\n")
    (told,) = anywhere.ok("topic", "describe", name, "--json").json
    assert told["name"] == name
    assert len(told["id"]) == 22
    assert told["configs"] == {"retention.ms": "1000", "segment.bytes": "1048576"}
    assert [p["partition"] for p in told["partitions"]] == [0, 1, 2]
    assert told["partitions"][1] == {
        "partition": 1,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "earliest": 0,
        "latest": 2,
    }

    anywhere.ok("topic", "alter", name, "-c", "max.message.bytes=99999", "-d", "retention.ms", "-p", "4")
    (told,) = anywhere.ok("topic", "describe", name, "--json").json
    assert told["configs"] == {"max.message.bytes": "99999", "segment.bytes": "1048576"}
    assert len(told["partitions"]) == 4

    assert anywhere.ok("topic", "delete", name).text == f"deleted {name}\n"
    assert name not in {topic["name"] for topic in anywhere.ok("topic", "list", "--json").json}


def test_what_cannot_be(anywhere, name):
    anywhere.ok("topic", "create", name)
    assert anywhere.fails("topic", "create", name) == (
        f"cannot create {name}: Topic '{name}' already exists. (TOPIC_ALREADY_EXISTS); "
        "--if-not-exists takes it as it is, `kbroker topic alter` changes it"
    )
    assert anywhere.ok("topic", "create", name, "--if-not-exists").text == f"{name} exists\n"
    assert "INVALID_CONFIG" in anywhere.fails("topic", "create", f"{name}-x", "-c", "retention.ms=soon")
    assert "INVALID_PARTITIONS" in anywhere.fails("topic", "alter", name, "-p", "1")
    assert "retention.ms" in anywhere.fails("topic", "alter", name, "-c", "retention.ms=soon")
    for verb in (["describe"], ["delete"], ["alter", "-p", "9"]):
        said = anywhere.fails("topic", *verb, f"{name}-no")
        assert said.startswith(f"topic {name}-no does not exist; did you mean {name}")
    assert anywhere.ok("topic", "delete", f"{name}-no", "--if-exists").out == b""
    anywhere.ok("topic", "delete", name)


def test_several_topics_fail_one_by_one(cli, name):
    cli.ok("topic", "create", f"{name}-1")
    done = cli("topic", "create", f"{name}-1", f"{name}-2", "bad name")
    assert done.status == 1
    assert done.lines == [f"created {name}-2"]
    assert [line.split(":")[1].strip() for line in done.err.splitlines()] == [
        f"cannot create {name}-1",
        "cannot create bad name",
    ]
    done = cli("topic", "describe", f"{name}-1", "nope", f"{name}-2", "--json")
    assert done.status == 1
    assert [topic["name"] for topic in done.json] == [f"{name}-1", f"{name}-2"]
    assert done.err == "kbroker: topic nope does not exist; `kbroker topic list` lists the existing topics\n"


def test_tables_are_plain_text_where_nobody_looks(cli, name):
    cli.ok("topic", "create", name, "-p", "2", "-c", "cleanup.policy=compact")
    (line,) = [line for line in cli.ok("topic", "list").lines if line.split()[0] == name]
    assert line.split() == [name, "2", "1"]
    told = cli.ok("topic", "describe", name).lines
    assert ["topic", name] in [line.split() for line in told]
    assert "config      cleanup.policy=compact" in told
    assert told[-3:] == [
        "PARTITION  LEADER  REPLICAS  ISR  EARLIEST  LATEST",
        "        0       1  1         1           0       0",
        "        1       1  1         1           0       0",
    ]


def test_internal_topics_are_listed_when_asked_for(cli, name):
    cli.ok("topic", "create", name)
    cli.ok("group", "reset", name, "--topic", name, "--to-latest", "--execute")
    assert "__consumer_offsets" not in cli.ok("topic", "list").text
    assert "__consumer_offsets" in cli.ok("topic", "list", "--internal").text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "t", "-c", "novalue"], "KEY=VALUE"),
        (["create", "t", "-p", "0"], "-p"),
        (["alter", "t"], "nothing to change"),
        (["describe", "t", "--pattern", "u"], "exactly one of names"),
        (["delete"], "either the names of topics or --pattern"),
        (["list", "--pattern", "("], "no regular expression of RE2"),
        (["create", "t", "--replica-assignment", "1:1"], "names a broker twice"),
        (["create", "t", "-p", "1", "--replica-assignment", "1"], "also sets both numbers"),
    ],
)
def test_wrong_usage(cli, arguments, said):
    done = cli("topic", *arguments)
    assert done.status == 2
    assert said in done.err


def test_on_a_terminal_tables_have_lines(cli, name):
    cli.ok("topic", "create", name, "-p", "2")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "KBROKER_BOOTSTRAP": cli.bootstrap, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "kbroker", "topic", "describe", name]
    try:
        subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, timeout=30, check=True)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert name in shown
    assert "\u2500" in shown
    assert "PARTITION" in shown


def test_wide_has_what_counts_most(anywhere, name):
    anywhere.ok("topic", "create", name, "-p", "2", "-c", "cleanup.policy=compact", "-c", "min.insync.replicas=1")
    anywhere.ok("produce", name, "-p", "0", "-k", ":", stdin=b"k:v\n")
    header, *rows = anywhere.ok("topic", "list", "-o", "wide", "--pattern", name).lines
    assert header.split("  ")[0] == "NAME"
    ((*cells, size),) = [row.split() for row in rows]
    assert cells == [name, "2", "1", "1", "compact", "604800000"]
    assert int(size) > 60
    assert len(anywhere.ok("topic", "list", "--pattern", name).lines[1].split()) == 3
    assert "NOT IN SYNC" in anywhere.ok("topic", "describe", name, "-o", "wide").text
    assert "NOT IN SYNC" not in anywhere.ok("topic", "describe", name).text


def test_partitions_that_ail(anywhere, name):
    """One broker: only the leader is in sync, which is just enough, or too few if min.insync.replicas is 2."""
    anywhere.ok("topic", "create", f"{name}-1", "-p", "2")
    anywhere.ok("topic", "create", f"{name}-2", "-c", "min.insync.replicas=2")

    def described(*options: str) -> dict[str, int]:
        told = anywhere.ok("topic", "describe", "--pattern", f"{name}-.", *options, "--json").json
        return {topic["name"].removeprefix(name): len(topic["partitions"]) for topic in told}

    assert described() == {"-1": 2, "-2": 1}
    assert described("--under-replicated-partitions") == {}
    assert described("--unavailable-partitions") == {}
    assert described("--under-min-isr-partitions") == {"-2": 1}
    assert described("--at-min-isr-partitions") == {"-1": 2}
    assert described("--topics-with-overrides") == {"-2": 1}
    (told,) = anywhere.ok("topic", "describe", f"{name}-1", "--json").json
    assert anywhere.ok("topic", "describe", "--topic-id", told["id"], "--json").json == [told]
    assert anywhere.fails("topic", "describe", "--topic-id", "A" * 22) == f"no topic has the id {'A' * 22}"


def test_topics_by_assignment_and_dry_runs(anywhere, name):
    assert anywhere.ok("topic", "create", name, "--dry-run").text == f"{name} could be created\n"
    anywhere.ok("topic", "create", name, "--replica-assignment", "1,1,1")
    anywhere.ok("topic", "alter", name, "-p", "4", "--replica-assignment", "1,1,1,1")
    (told,) = anywhere.ok("topic", "describe", name, "--json").json
    assert [each["replicas"] for each in told["partitions"]] == [[1]] * 4
    refused = anywhere.fails("topic", "create", f"{name}-x", "--replica-assignment", "7")
    assert "no such broker is registered. (INVALID_REPLICATION_ASSIGNMENT)" in refused
    done = anywhere("topic", "delete", "--pattern", f"{name}.*", stdin=b"n\n")
    assert done.status == 130
    assert anywhere.ok("topic", "delete", "--pattern", f"{name}.*", "--yes").text == f"deleted {name}\n"


def test_offsets_of_all_topics(cli, name):
    cli.ok("topic", "create", name)
    told = cli.ok("topic", "offsets", "--exclude-internal-topics", "--json").json
    assert (name, 0) in {(each["topic"], each["offset"]) for each in told}
    assert not any(each["topic"].startswith("__") for each in told)


def test_moves_from_a_file(anywhere, name, tmp_path):
    anywhere.ok("topic", "create", name, "-p", "2")
    file = tmp_path / "moves.json"
    file.write_text(anywhere.ok("topic", "reassign", name, "--generate", "1").text)
    assert json.loads(file.read_text()) == {
        "version": 1,
        "partitions": [{"topic": name, "partition": index, "replicas": [1], "log_dirs": ["any"]} for index in range(2)],
    }

    def rates() -> set[str]:
        told = anywhere.ok("config", "describe", "--broker", "1", "--json").json
        return {each["value"] for each in told if "throttled.rate" in each["key"]}

    moved = anywhere.ok("topic", "reassign", "--json-file", str(file), "--throttle", "1000000", "--wait")
    assert moved.text == "2 partitions were moved\n"
    assert rates() == set()
    anywhere.ok("topic", "reassign", "--json-file", str(file), "--throttle", "1000000")
    assert rates() == {"1000000"}
    told = anywhere.ok("topic", "reassign", "--json-file", str(file), "--verify", "--json").json
    assert [each["state"] for each in told] == ["is there", "is there"]
    assert rates() == set()
    left = anywhere.ok("config", "describe", "--topic", name, "--json").json
    assert not any("throttled" in each["key"] for each in left)


def test_moves_that_make_no_sense(cli, name, tmp_path):
    cli.ok("topic", "create", name)
    file = tmp_path / "moves.json"

    def refused(text: str, *options: str) -> str:
        file.write_text(text)
        done = cli("topic", "reassign", "--json-file", str(file), *options)
        assert done.status != 0
        return done.err

    assert "does not have the form" in refused("[]")
    assert "names no partition" in refused('{"partitions": []}')
    once = f'{{"topic": "{name}", "partition": 0, "replicas": [1]}}'
    assert "twice" in refused(f'{{"partitions": [{once}, {once}]}}')
    assert "different broker ids" in refused(f'{{"partitions": [{once.replace("[1]", "[1, 1]")}]}}')
    assert "has no partition 7" in refused(f'{{"partitions": [{once.replace(": 0", ": 7")}]}}')
    assert "did you mean" in refused(f'{{"partitions": [{once.replace(name, name + "x")}]}}')
    more = f'{{"partitions": [{once.replace("[1]", "[1, 2]")}]}}'
    assert "has 1 replicas, and would have 2" in refused(more, "--disallow-replication-factor-change")
    assert "have other replicas and are not being moved" in refused(more, "--verify")
    assert "no live broker has id 9" in cli.fails("topic", "reassign", name, "--generate", "9")


def test_elections_of_some_partitions(cli, name, tmp_path):
    cli.ok("topic", "create", name, "-p", "2")
    assert cli.ok("topic", "elect", name, "-p", "1").text == "0 partitions have another leader\n"
    file = tmp_path / "partitions.json"
    file.write_text(f'{{"partitions": [{{"topic": "{name}", "partition": 1}}]}}')
    assert cli.ok("topic", "elect", "--json-file", str(file)).text == "0 partitions have another leader\n"
    file.write_text(f'{{"partitions": [{{"topic": "{name}", "partition": 5}}]}}')
    assert f"{name}-5: " in cli.fails("topic", "elect", "--json-file", str(file))
    file.write_text("{}")
    assert cli("topic", "elect", "--json-file", str(file)).status == 2
