"""docs/cli-options.md: it contains every option in the help of Kafka's tools, and only existing verbs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from compat_tests.harness.jvm import run_java
from kbroker.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "cli-options.md"
_TOOLS = "org.apache.kafka.tools"
CLASSES = {
    "acls": f"{_TOOLS}.AclCommand",
    "broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "client-metrics": f"{_TOOLS}.ClientMetricsCommand",
    "cluster": f"{_TOOLS}.ClusterTool",
    "configs": "org.apache.kafka.tools.ConfigCommand",
    "console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "console-producer": f"{_TOOLS}.ConsoleProducer",
    "console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "dump-log": f"{_TOOLS}.DumpLogSegments",
    "features": f"{_TOOLS}.FeatureCommand",
    "get-offsets": f"{_TOOLS}.GetOffsetShell",
    "groups": f"{_TOOLS}.GroupsCommand",
    "jmx": f"{_TOOLS}.JmxTool",
    "leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "log-dirs": f"{_TOOLS}.LogDirsCommand",
    "metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "replica-verification": f"{_TOOLS}.ReplicaVerificationTool",
    "server-start": "kafka.Kafka",
    "share-consumer-perf-test": f"{_TOOLS}.ShareConsumerPerformance",
    "share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "storage": "kafka.tools.StorageTool",
    "streams-application-reset": f"{_TOOLS}.StreamsResetter",
    "streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "topics": f"{_TOOLS}.TopicCommand",
    "transactions": f"{_TOOLS}.TransactionsCommand",
    "verifiable-consumer": f"{_TOOLS}.VerifiableConsumer",
    "verifiable-producer": f"{_TOOLS}.VerifiableProducer",
    "verifiable-share-consumer": f"{_TOOLS}.VerifiableShareConsumer",
}
WITH_COMMANDS = ("cluster", "features", "metadata-quorum", "storage", "transactions")
"""Tools with commands, each of which has its own options."""
WITHOUT_OPTIONS = {"broker-api-versions", "e2e-latency"}
COMMANDS_OF = re.compile(r"\{([\w,-]+)\}")


def sections() -> dict[str, dict[str, str]]:
    """Return the rows of the page by tool: the option and its counterpart."""
    found: dict[str, dict[str, str]] = {}
    for text in PAGE.read_text().split("\n## ")[1:]:
        title, _, body = text.partition("\n")
        name = title.strip("`").removeprefix("kafka-").removesuffix(".sh")
        rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", body, re.MULTILINE)
        assert len({option for option, _ in rows}) == len(rows), f"{name} has an option twice"
        found[name] = dict(rows)
    return found


def options_in(text: str) -> set[str]:
    """Return the options in a tool's help, each at the beginning of its line, whichever parser wrote it."""
    found: set[str] = set()
    for line in text.splitlines():
        head = re.split(r"\s{2,}", line.removeprefix("* ").strip())[0]
        if re.match(r"(\* )?\s{0,2}-", line):
            found |= set(re.findall(r"(?<!\S)(--[A-Za-z][\w.-]*)", head))
    return found


def commands_in(text: str) -> set[str]:
    """Return the commands of a tool, as argparse4j lists them."""
    listed = re.search(r"^(?:commands|positional arguments):\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert listed is not None, text
    return set(re.findall(r"^    ([a-zA-Z][\w-]+)", listed[1], re.MULTILINE))


def test_a_help_of_either_parser_is_understood():
    jopt = (
        "Option (* = required)   Description\n* --bootstrap-server <String: a  REQUIRED: see --not-this\n--list   List"
    )
    assert options_in(jopt) == {"--bootstrap-server", "--list"}
    argparse = "options:\n  -h, --help          show --not-this\n  --config C, -c C\n             --nor-this"
    assert options_in(argparse) == {"--help", "--config"}
    assert commands_in("commands:\n  COMMAND\n    list                 list\n    find-hanging         find\n\n") == {
        "list",
        "find-hanging",
    }


@pytest.mark.java
@pytest.mark.parametrize("tool", sorted(CLASSES))
def test_every_option_of_a_tool_is_on_the_page(kafka_libs, tool):
    _, out, err = run_java(kafka_libs, CLASSES[tool], "--help")
    wanted = options_in(out + "\n" + err)
    if tool in WITH_COMMANDS:
        commands = commands_in(out + "\n" + err)
        wanted |= commands
        for command in commands:
            before = ["--bootstrap-server", "127.0.0.1:1"] if tool in ("transactions", "metadata-quorum") else []
            _, out, err = run_java(kafka_libs, CLASSES[tool], *before, command, "--help")
            wanted |= options_in(out + "\n" + err)
    assert wanted, out + err
    page = sections()
    have = page[tool].keys() | page["Every tool"].keys()
    assert wanted <= have, f"docs/cli-options.md lacks {sorted(wanted - have)}"
    more = page[tool].keys() - wanted
    assert not more, f"{tool} has no {sorted(more)}"


def test_the_page_has_the_tools_that_are_asked_and_no_others():
    assert sections().keys() == {*CLASSES, "e2e-latency", "Every tool"}
    for tool, rows in sections().items():
        assert bool(rows) == (tool not in WITHOUT_OPTIONS), tool


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Mapping[tuple[str, ...], click.Command]:
    found = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= commands(below, (*path, name))
    return found


def test_every_verb_and_option_that_is_named_exists():
    known = commands(cli)
    named = 0
    for text in re.findall(r"`kbroker ([^`]+)`", PAGE.read_text()):
        words = text.split()
        path = tuple(word for word in words if not word.startswith("-"))
        assert path in known, f"kbroker {text}"
        options = {name for each in known[path].params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        for word in words:
            if word.startswith("-"):
                assert word in options, f"kbroker {text}"
                named += 1
    assert named > 100


def test_every_option_has_a_verb_or_a_reason():
    for tool, rows in sections().items():
        for option, told in rows.items():
            plain = "none: ", "the same as ", "argument", "always", "names", "an argument", "the name", "the value"
            assert "`kbroker " in told or any(told.startswith(each) for each in plain), (tool, option, told)
