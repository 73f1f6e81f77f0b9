"""`kbroker topic`."""

from __future__ import annotations

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
    assert listed[name] == {"name": name, "partitions": 3, "replicas": 1, "internal": False}

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
        f"cannot create {name}: Topic '{name}' already exists. (TOPIC_ALREADY_EXISTS)"
    )
    assert anywhere.ok("topic", "create", name, "--if-not-exists").text == f"{name} exists\n"
    assert "INVALID_CONFIG" in anywhere.fails("topic", "create", f"{name}-x", "-c", "retention.ms=soon")
    assert "INVALID_PARTITIONS" in anywhere.fails("topic", "alter", name, "-p", "1")
    assert "retention.ms" in anywhere.fails("topic", "alter", name, "-c", "retention.ms=soon")
    for verb in (["describe"], ["delete"], ["alter", "-p", "9"]):
        assert anywhere.fails("topic", *verb, f"{name}-no") == f"topic {name}-no does not exist"
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
    assert done.err == "kbroker: topic nope does not exist\n"


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
        (["describe"], "NAME"),
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
