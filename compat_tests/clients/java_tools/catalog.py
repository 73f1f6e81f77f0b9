"""The scenarios: one for each family of tools."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path

from compat_tests.clients.java_tools import scenarios
from compat_tests.clients.java_tools.tool import run
from compat_tests.streams.app import Application, Input, Output, create_topics
from compat_tests.streams.scenarios import wait_for_members
from compat_tests.wire.plain import OURS


@scenarios.add
def topics(bootstrap: str, unique: str) -> object:
    def tool(*arguments: str) -> list[str]:
        return run("topics", *arguments, bootstrap=bootstrap)

    return {
        "create": tool("--create", "--topic", unique, "--partitions", "3", "--config", "retention.ms=100000"),
        "create again": tool("--create", "--topic", unique),
        "create if missing": tool("--create", "--topic", unique, "--if-not-exists"),
        "bad name": tool("--create", "--topic", "a b"),
        "bad config": tool("--create", "--topic", f"{unique}-x", "--config", "no.such=1"),
        "too many replicas": tool("--create", "--topic", f"{unique}-x", "--replication-factor", "3"),
        "describe": tool("--describe", "--topic", unique),
        "grow": tool("--alter", "--topic", unique, "--partitions", "4"),
        "shrink": tool("--alter", "--topic", unique, "--partitions", "1"),
        "describe grown": tool("--describe", "--topic", unique),
        "list": [line for line in tool("--list") if unique in line or line.startswith("exit")],
        "describe unknown": tool("--describe", "--topic", f"{unique}-none"),
        "delete": tool("--delete", "--topic", unique),
        "delete again": tool("--delete", "--topic", unique),
    }


@scenarios.add
def configs(bootstrap: str, unique: str) -> object:
    def tool(*arguments: str) -> list[str]:
        return run("configs", *arguments, bootstrap=bootstrap)

    entity = ["--entity-type", "topics", "--entity-name", unique]
    run("topics", "--create", "--topic", unique, bootstrap=bootstrap)
    broker = ["--entity-type", "brokers", "--entity-name", "1"]
    return {
        "add": tool("--alter", *entity, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]"),
        "describe": tool("--describe", *entity),
        "delete": tool("--alter", *entity, "--delete-config", "retention.ms"),
        "describe again": tool("--describe", *entity),
        "unknown": tool("--alter", *entity, "--add-config", "no.such=1"),
        "bad value": tool("--alter", *entity, "--add-config", "retention.ms=soon"),
        "unknown topic": tool("--describe", "--entity-type", "topics", "--entity-name", f"{unique}-none"),
        "all of a topic": [
            line for line in tool("--describe", "--all", *entity) if line.strip().partition("=")[0] not in OURS
        ],
        "broker": tool("--alter", *broker, "--add-config", "log.cleaner.threads=2"),
        "broker described": tool("--describe", *broker),
        "broker reset": tool("--alter", *broker, "--delete-config", "log.cleaner.threads"),
        "read-only": tool("--alter", *broker, "--add-config", "node.id=9"),
    }


@scenarios.add
def features(bootstrap: str, unique: str) -> object:
    shared = ("Feature: group.", "Feature: kraft.", "Feature: metadata.", "Feature: transaction.")
    # The epoch counts the records of Kafka's metadata log.
    described = [
        line.partition(" Epoch:")[0]
        for line in run("features", "describe", bootstrap=bootstrap)
        if line.startswith(shared)
    ]
    as_it_is = run("features", "upgrade", "--metadata", "4.4-IV0", bootstrap=bootstrap)
    lower = run("features", "downgrade", "--metadata", "4.2-IV1", bootstrap=bootstrap)
    return {"described": described, "as it is": as_it_is, "lower": lower, "unique": bool(unique)}


@scenarios.add
def loggers(bootstrap: str, unique: str) -> object:
    loggers = ["--entity-type", "broker-loggers", "--entity-name", "1"]

    def tool(*arguments: str) -> list[str]:
        return run("configs", *arguments, *loggers, bootstrap=bootstrap)

    return {
        "set": tool("--alter", "--add-config", "root=INFO"),
        "described": [line for line in tool("--describe") if line.startswith("root=")],
        "bad level": tool("--alter", "--add-config", "root=LOUD"),
        "unknown": tool("--alter", "--add-config", f"{unique}=INFO"),
        "delete": tool("--alter", "--delete-config", "root"),
    }


@scenarios.add
def console(bootstrap: str, unique: str) -> object:
    run("topics", "--create", "--topic", unique, bootstrap=bootstrap)
    properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    produced = run("console-producer", "--topic", unique, *properties, stdin="a:1\nb:2\nc:3\n", bootstrap=bootstrap)
    compressed = run(
        "console-producer", "--topic", unique, "--compression-codec", "zstd", stdin="plain\n", bootstrap=bootstrap
    )
    shown = [f"--formatter-property=print.{what}=true" for what in ("key", "partition", "offset", "headers")]
    return {
        "produced": produced,
        "compressed": compressed,
        "consumed": run(
            "console-consumer",
            "--topic",
            unique,
            "--from-beginning",
            "--max-messages",
            "4",
            *shown,
            bootstrap=bootstrap,
        ),
        "from an offset": run(
            "console-consumer",
            *["--topic", unique, "--partition", "0", "--offset", "2", "--max-messages", "2"],
            bootstrap=bootstrap,
        ),
        "nothing more": run(
            "console-consumer",
            *["--topic", unique, "--partition", "0", "--offset", "latest", "--timeout-ms", "2000"],
            bootstrap=bootstrap,
        ),
        "by a group": run(
            "console-consumer",
            *["--topic", unique, "--group", unique, "--from-beginning", "--max-messages", "3"],
            bootstrap=bootstrap,
        ),
    }


@scenarios.add
def perf(bootstrap: str, unique: str) -> object:
    run("topics", "--create", "--topic", unique, "--partitions", "2", bootstrap=bootstrap)
    size = ["--num-records", "20000", "--record-size", "200", "--throughput", "-1"]
    seen = {}
    for codec in ("none", "lz4"):
        props = ["--producer-props", f"bootstrap.servers={bootstrap}", f"compression.type={codec}"]
        lines = run("producer-perf", "--topic", unique, *size, *props)
        seen[f"producer {codec}"] = [lines[0], [re.sub(r"[\d.,]+", "#", line.split(",")[0]) for line in lines[1:]][-1]]
        assert "20000 records sent" in lines[-1], lines
    lines = run("consumer-perf", "--topic", unique, "--messages", "40000", bootstrap=bootstrap)
    fields = lines[-1].split(", ")
    return {**seen, "consumer": [lines[0], fields[2], fields[4]]}


@scenarios.add
def consumer_groups(bootstrap: str, unique: str) -> object:
    def tool(*arguments: str) -> list[str]:
        return run("consumer-groups", *arguments, bootstrap=bootstrap)

    run("topics", "--create", "--topic", unique, "--partitions", "2", bootstrap=bootstrap)
    # The records have keys, so that they go to the same partitions on both sides.
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    lines = "".join(f"k{i}:{i}\n" for i in range(10))
    run("console-producer", "--topic", unique, *keyed, stdin=lines, bootstrap=bootstrap)
    run(
        "console-consumer",
        *["--topic", unique, "--group", unique, "--from-beginning", "--max-messages", "10"],
        bootstrap=bootstrap,
    )
    group, reset = ["--group", unique], ["--reset-offsets", "--group", unique, "--topic", unique]
    return {
        "describe": tally(tool("--describe", *group)),
        "members": tool("--describe", *group, "--members"),
        "state": tool("--describe", *group, "--state"),
        "list": [line for line in tool("--list") if unique in line or line.startswith("exit")],
        "list with state": [line for line in tool("--list", "--state") if unique in line],
        "dry run": tally(tool(*reset, "--to-earliest", "--dry-run")),
        "to earliest": tally(tool(*reset, "--to-earliest", "--execute")),
        "shifted": tally(tool(*reset, "--shift-by", "1", "--execute")),
        "to an offset": tally(tool(*reset, "--to-offset", "2", "--execute")),
        "to a time": tally(tool(*reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")),
        "to latest": len(tool(*reset, "--to-latest", "--execute")),
        "delete offsets": tally(tool("--delete-offsets", *group, "--topic", unique)),
        "delete": tool("--delete", *group),
        "delete again": first_line(tool("--delete", *group)),
        "describe unknown": first_line(tool("--describe", "--group", f"{unique}-none")),
    }


@scenarios.add
def consumer_protocol(bootstrap: str, unique: str) -> object:
    """The Java client with group.protocol=consumer, and what the tools print about its group."""

    def tool(*arguments: str) -> list[str]:
        return run("consumer-groups", *arguments, bootstrap=bootstrap)

    def consume(count: int) -> list[str]:
        new = ["--command-property", "group.protocol=consumer"]
        wanted = ["--topic", unique, "--group", unique, "--from-beginning", "--max-messages", str(count)]
        return tally(run("console-consumer", *wanted, *new, bootstrap=bootstrap))

    run("topics", "--create", "--topic", unique, "--partitions", "2", bootstrap=bootstrap)
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    lines = "".join(f"k{i}:{i}\n" for i in range(10))
    run("console-producer", "--topic", unique, *keyed, stdin=lines, bootstrap=bootstrap)
    group = ["--group", unique]
    return {
        "consumed": consume(10),
        "describe": tally(tool("--describe", *group)),
        "verbose": tally(tool("--describe", *group, "--offsets", "--verbose")),
        "members": tool("--describe", *group, "--members", "--verbose"),
        "state": tool("--describe", *group, "--state", "--verbose"),
        "list": [line for line in tool("--list", "--type", "consumer", "--state") if unique in line],
        "configured": run(
            "configs",
            *["--alter", "--entity-type", "groups", "--entity-name", unique],
            *["--add-config", "consumer.session.timeout.ms=50000"],
            bootstrap=bootstrap,
        ),
        "reset": tally(tool("--reset-offsets", *group, "--topic", unique, "--to-offset", "1", "--execute")),
        "consumed again": len(consume(4)),
        "delete": tool("--delete", *group),
        "describe deleted": first_line(tool("--describe", *group)),
    }


@scenarios.add
def share_groups(bootstrap: str, unique: str) -> object:
    """The console's share consumer, and each option of kafka-share-groups."""

    def tool(*arguments: str) -> list[str]:
        return run("share-groups", *arguments, bootstrap=bootstrap)

    def consume(count: int, *arguments: str) -> list[str]:
        wanted = ["--topic", unique, "--group", unique, "--max-messages", str(count), "--timeout-ms", "20000"]
        return tally(run("console-share-consumer", *wanted, *arguments, bootstrap=bootstrap))

    run("topics", "--create", "--topic", unique, "--partitions", "2", bootstrap=bootstrap)
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    lines = "".join(f"k{i}:{i}\n" for i in range(10))
    run("console-producer", "--topic", unique, *keyed, stdin=lines, bootstrap=bootstrap)
    entity = ["--entity-type", "groups", "--entity-name", unique]
    group, offsets = ["--group", unique], ["--reset-offsets", "--group", unique, "--topic", unique]
    return {
        "configured": run(
            "configs", "--alter", *entity, "--add-config", "share.auto.offset.reset=earliest", bootstrap=bootstrap
        ),
        "configs": run("configs", "--describe", *entity, bootstrap=bootstrap),
        "rejected": consume(10, "--reject"),
        "again": consume(10)[:1],
        "describe": tally(tool("--describe", *group)),
        "offsets": tally(tool("--describe", *group, "--offsets", "--verbose")),
        "members": tool("--describe", *group, "--members"),
        "state": tool("--describe", *group, "--state", "--verbose"),
        "list": [line for line in tool("--list") if unique in line or line.startswith("exit")],
        "list with state": [line for line in tool("--list", "--state") if unique in line],
        "list by state": [line for line in tool("--list", "--state", "Stable") if unique in line],
        "all groups": [line for line in run("groups", "--list", bootstrap=bootstrap) if unique in line],
        "by type": [line for line in run("groups", "--list", "--share", bootstrap=bootstrap) if unique in line],
        "dry run": tally(tool(*offsets, "--to-earliest", "--dry-run")),
        "to earliest": tally(tool(*offsets, "--to-earliest", "--execute")),
        "released": len(consume(10, "--release")),
        "to a time": tally(tool(*offsets, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")),
        "to latest": tally(tool(*offsets, "--to-latest", "--execute")),
        "delete offsets": tally(tool("--delete-offsets", *group, "--topic", unique)),
        "delete offsets again": tally(tool("--delete-offsets", *group, "--topic", unique)),
        "describe without": tool("--describe", *group),
        "delete": tool("--delete", *group),
        "delete again": first_line(tool("--delete", *group)),
        "describe unknown": first_line(tool("--describe", "--group", f"{unique}-none")),
        "reset unknown": first_line(
            tool("--reset-offsets", "--group", f"{unique}-none", "--all-topics", "--to-latest", "--execute")
        ),
    }


@scenarios.add
def streams_groups(bootstrap: str, unique: str) -> object:
    """Each option of kafka-streams-groups, for the group of an application that has counted words."""

    def tool(*arguments: str) -> list[str]:
        return run("streams-groups", *arguments, bootstrap=bootstrap)

    create_topics(bootstrap, unique)
    source, output, group = Input(bootstrap, unique, 20261128), Output(bootstrap, unique), f"{unique}-app"
    name = ["--group", group]
    reset = ["--reset-offsets", *name, "--input-topic", f"{unique}-lines"]
    with tempfile.TemporaryDirectory() as directory:
        application = Application(bootstrap, unique, Path(directory) / "state", "streams")
        with application:
            source.send(200)
            output.wait_for(source.counts, application, 60)
            running = {
                "list": [line for line in tool("--list", "--state") if group in line],
                "members": [len(line.split()) for line in tool("--describe", *name, "--members")],
                "state": tool("--describe", *name, "--state", "--verbose"),
                "reset": first_line(tool(*reset, "--to-earliest", "--execute")),
                "delete": first_line(tool("--delete", *name)),
            }
    output.close()
    wait_for_members(bootstrap, unique, 0)
    return {
        "running": running,
        "list": [line for line in tool("--list") if group in line],
        "describe": tally(tool("--describe", *name)),
        "offsets": tally(tool("--describe", *name, "--offsets", "--verbose")),
        "state": tool("--describe", *name, "--state"),
        "dry run": tally(tool(*reset, "--to-earliest", "--dry-run")),
        "to an offset": tally(tool(*reset, "--to-offset", "3", "--execute")),
        "to latest": tally(tool(*reset, "--to-latest", "--execute")),
        "delete offsets": tally(tool("--delete-offsets", *name, "--input-topic", f"{unique}-lines")),
        "delete": tally(tool("--delete", *name)),
        "delete again": first_line(tool("--delete", *name)),
        "describe deleted": first_line(tool("--describe", *name)),
        "topics left": [line for line in run("topics", "--list", bootstrap=bootstrap) if group in line],
    }


def tally(lines: list[str]) -> list[str]:
    """Sort the lines: Kafka does not promise an order of partitions."""
    return sorted(lines)


def first_line(lines: list[str]) -> list[str]:
    """Keep the status and the first line: Java's stack traces follow it."""
    return lines[:2]


@scenarios.add
def offsets_and_records(bootstrap: str, unique: str) -> object:
    run("topics", "--create", "--topic", unique, bootstrap=bootstrap)
    run("console-producer", "--topic", unique, stdin="".join(f"{i}\n" for i in range(10)), bootstrap=bootstrap)

    def offsets(*arguments: str) -> list[str]:
        return run("get-offsets", "--topic", unique, *arguments, bootstrap=bootstrap)

    def delete(offset: int, partition: int = 0) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "offsets.json"
            wanted = {"topic": unique, "partition": partition, "offset": offset}
            file.write_text(json.dumps({"partitions": [wanted], "version": 1}))
            patience = Path(directory) / "client.properties"
            patience.write_text("default.api.timeout.ms=5000\n")  # a minute for a partition that does not exist
            options = ["--offset-json-file", str(file), "--command-config", str(patience)]
            return run("delete-records", *options, bootstrap=bootstrap)

    seen: dict[str, object] = {
        "latest": offsets(),
        "earliest": offsets("--time", "earliest"),
        "a past time": offsets("--time", str(int((time.time() - 3600) * 1000))),
        "unknown topic": run("get-offsets", "--topic", f"{unique}-none", bootstrap=bootstrap)[:2],
        "delete to 4": delete(4),
        "delete past the end": delete(99)[:3],
        "delete an unknown partition": delete(1, 7)[:3],
        "earliest then": offsets("--time", "earliest"),
        "what is left": run(
            "console-consumer", "--topic", unique, "--from-beginning", "--max-messages", "6", bootstrap=bootstrap
        ),
    }
    described = run("log-dirs", "--describe", "--topic-list", unique, bootstrap=bootstrap)
    dirs = json.loads(described[-1])["brokers"][0]["logDirs"]
    seen["log dirs"] = [[p["partition"], p["offsetLag"], p["isFuture"]] for d in dirs for p in d["partitions"]]
    seen["cluster"] = run("cluster", "cluster-id", bootstrap=bootstrap)
    quorum = run("metadata-quorum", "describe", "--status", bootstrap=bootstrap)
    seen["quorum"] = [line for line in quorum if line.startswith(("exit", "Leader", "MaxFollowerLag: ", "CurrentObs"))]
    return seen
