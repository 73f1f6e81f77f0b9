"""Failures that a user meets, and the remedy that the error line names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from kbroker import Broker
from kbroker.admin.errors import error_text
from kbroker.cli import remedies
from kbroker.cli.main import VERBS, cli
from kbroker.cli.remedies import verb_of, with_remedy
from kbroker.protocol.errors import ErrorCode
from tests.cli.conftest import CommandLine

ALICE = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=alice")
LOGIN = (*ALICE, "-X", "sasl.password=secret")


@pytest.fixture(scope="module")
def guarded() -> Iterator[CommandLine]:
    """Yield a broker to which alice may log in, without any rights."""
    with Broker({"super.users": "User:root"}, users={"alice": "secret", "root": "secret"}, acls=[]) as broker:
        yield CommandLine(broker.bootstrap_servers)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> set[str]:
    found = {" ".join(path)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= commands(below, (*path, name))
    return found


def test_the_verbs_and_errors_that_remedies_are_for_exist() -> None:
    known = commands(cli)
    for _, needed, _ in remedies._RIGHTS.values():
        assert needed.keys() <= known
    assert {*remedies._BY_NAME, *remedies._RIGHTS} <= set(ErrorCode.__members__)


def test_what_remedies_name_exists() -> None:
    texts = [*remedies._BY_NAME.values(), *(text for _, text in remedies._LINES)]
    named = [each for text in texts for each in re.findall(r"`kbroker ([^`]+)`", text)]
    assert len(named) > 12
    known = commands(cli)
    for each in named:
        words = [word for word in each.split() if not word.startswith("-") and word.islower()]
        assert " ".join(words[:2]) in known or words[0] in VERBS, each


@pytest.mark.parametrize(
    ("arguments", "verb"),
    [
        (["topic", "list", "-b", "x"], "topic list"),
        (["--debug", "consume", "t"], "consume t"),
        (["consume", "-g", "x"], "consume"),
        ([], ""),
    ],
)
def test_a_verb_is_known_by_how_a_line_begins(arguments: list[str], verb: str) -> None:
    assert verb_of(arguments) == verb


def test_each_of_several_lines_has_its_remedy() -> None:
    told = with_remedy("cannot delete a: x (NON_EMPTY_GROUP)\nkbroker: b: y (INVALID_CONFIG)", ["group", "delete"])
    first, second = told.split("\n")
    assert first.startswith("cannot delete a: x (NON_EMPTY_GROUP); stop its members first; ")
    assert second == "kbroker: b: y (INVALID_CONFIG)"


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["topic", "create", "t"], "--operation Create"),
        (["topic", "delete", "t"], "--operation Delete --topic TOPIC"),
        (["group", "describe", "g"], "--operation Describe --group GROUP"),
        (["group", "delete", "g"], "--operation Delete --group GROUP"),
        (["deadletter", "list", "--group", "g"], "--operation DescribeConfigs --group GROUP"),
        (["config", "describe", "--group", "g"], "--operation DescribeConfigs --group GROUP"),
        (["acl", "list"], "--operation Describe --cluster"),
        (["user", "list"], "--operation Describe --cluster"),
        (["quota", "list"], "--operation DescribeConfigs --cluster"),
        (["config", "describe", "--broker", "1"], "--operation DescribeConfigs --cluster"),
        (["transaction", "describe", "x"], "--operation Describe --transactional-id ID"),
    ],
)
def test_who_lacks_a_right_reads_which(guarded: CommandLine, arguments: list[str], right: str) -> None:
    done = guarded(*arguments, *LOGIN)
    assert done.status == 1, done
    assert "AUTHORIZATION_FAILED); an administrator of ACLs allows it: `kbroker acl add" in done.err
    assert right in done.err


def test_the_right_that_is_named_is_enough(guarded: CommandLine) -> None:
    root = (*LOGIN, "-X", "sasl.username=root")
    guarded.ok("topic", "create", "orders", *root)
    refused = guarded.fails("produce", "orders", *LOGIN)
    right = re.search(r"`kbroker (acl add [^`]+)`", refused)
    assert right is not None, refused
    words = right[1].replace("User:NAME", "User:alice").replace("TOPIC", "orders").split()
    guarded.ok(*words, *root)
    guarded.ok("produce", "orders", *LOGIN, stdin=b"a\n")


def test_the_rights_of_dead_letters(guarded: CommandLine) -> None:
    """The test grants each right that a refusal names, until the verb succeeds."""
    root, topic = (*LOGIN, "-X", "sasl.username=root"), "dlq.jobs"
    guarded.ok("topic", "create", topic, *root)
    headers = [f"__dlq.errors.{each}" for each in ("topic=jobs", "partition=0", "offset=0")]
    guarded.ok("topic", "create", "jobs", *root)
    guarded.ok("produce", topic, *(word for each in headers for word in ("-H", each)), *root, stdin=b"a\n")
    guarded.ok("acl", "add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", topic, *root)
    names = {"GROUP": f"kbroker-deadletter-{topic}", "ID": f"kbroker-deadletter-{topic}", "TOPIC": topic}
    for verb in (["list"], ["show"], ["replay", "--to", "jobs", "--execute"], ["purge", "--all", "--execute"]):
        arguments = ["deadletter", verb[0], topic, *verb[1:], *LOGIN]
        if "--to" in verb:
            guarded.ok("acl", "add", "--allow-principal", "User:alice", "--producer", "--topic", "jobs", *root)
        for _ in range(4):
            done = guarded(*arguments)
            if done.status == 0:
                break
            right = re.search(r"`kbroker (acl add [^`]+)`", done.err)
            assert right is not None, done
            assert "GROUP_AUTH" not in done.err or names["GROUP"] in done.err, "a user has not heard of this group"
            words = [names.get(word, word) for word in right[1].replace("User:NAME", "User:alice").split()]
            guarded.ok(*words, *root)
        assert done.status == 0, done


def test_a_wrong_password_is_told_as_such(guarded: CommandLine) -> None:
    said = guarded.fails("topic", "list", *ALICE, "-X", "sasl.password=wrong", "-X", "bootstrap.timeout.ms=2000")
    assert said.endswith("lets this client in: are mechanism, name and password right?")


def test_no_login_where_one_is_asked_for(guarded: CommandLine) -> None:
    said = guarded.fails("topic", "list", "-X", "bootstrap.timeout.ms=1000")
    assert "a listener that asks for a login (-X security.protocol=SASL_PLAINTEXT)?" in said


@pytest.mark.long
def test_tls_on_one_side_only(cli: CommandLine) -> None:
    said = cli.fails("topic", "list", "-X", "security.protocol=SSL", "-X", "bootstrap.timeout.ms=1000")
    assert said.endswith("-X security.protocol=PLAINTEXT, or SASL_PLAINTEXT where it asks for a login")
    with Broker(tls=True) as broker:
        other = CommandLine(broker.bootstrap_servers)
        said = other.fails("topic", "list", "-X", "bootstrap.timeout.ms=1000")
        assert said.endswith("-X security.protocol=SSL, or SASL_SSL where it asks for a login")
        tls = ("-X", "security.protocol=SSL", "-X", "bootstrap.timeout.ms=1000")
        assert other.fails("topic", "list", *tls).endswith("-X ssl.ca.location=FILE names whom to trust")


def test_no_broker() -> None:
    said = CommandLine("127.0.0.1:1").fails("topic", "list")
    assert said == (
        "no broker answers at 127.0.0.1:1: connection refused; "
        "does one run there (`kbroker start`), and is the address right (-b HOST:PORT)?"
    )
    assert CommandLine("no..host:9092").fails("topic", "list").endswith("is the address right (-b HOST:PORT)?")


def test_an_offset_beyond_what_is_there(cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)
    said = cli.fails("record", "delete", name, "-p", "0", "--before-offset", "5", "--yes")
    assert said.endswith("shows where partitions begin")
    said = cli.fails("consume", name, "-p", "0", "--offset", "7")
    assert "it has offsets from 0 to 0" in said


def test_a_topic_that_is_nearly_there(cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)
    verbs = (["consume"], ["topic", "offsets"], ["record", "find"], ["transaction", "producers"], ["topic", "describe"])
    for verb in verbs:
        more = ["0"] if verb[-1] == "producers" else []
        said = cli.fails(*verb, f"{name}x", *more)
        assert said.startswith(f"topic {name}x does not exist; did you mean {name}"), verb


def test_a_rule_of_the_cluster(cli: CommandLine, name: str) -> None:
    said = cli.fails("topic", "create", name, "-p", "2000000")
    assert "POLICY_VIOLATION" not in said or "its administrator knows the rule, and can change it" in said
    line = f"x: {error_text(None, 'too many')} (POLICY_VIOLATION)"
    assert with_remedy(line, ["topic", "create"]).endswith("its administrator knows the rule, and can change it")


def test_too_few_brokers(cli: CommandLine, name: str) -> None:
    said = cli.fails("topic", "create", name, "-r", "3")
    assert said.endswith("(INVALID_REPLICATION_FACTOR); `kbroker broker list` shows how many brokers live")


def test_no_authorizer(cli: CommandLine) -> None:
    assert cli.fails("acl", "list").endswith("(SECURITY_DISABLED); ACLs need brokers with an authorizer.class.name")


def test_a_config_of_a_topic_that_is_nearly_there(cli: CommandLine, name: str) -> None:
    near = "Unknown topic config name: retention.sm (INVALID_CONFIG); did you mean retention.ms?"
    said = cli.fails("topic", "create", name, "-c", "retention.sm=5")
    assert said.endswith(near)
    cli.ok("topic", "create", name)
    assert cli.fails("topic", "alter", name, "-c", "retention.sm=5").endswith("; did you mean retention.ms?")
    assert "did you mean" not in cli.fails("topic", "alter", name, "-c", "retention.ms=x")
    assert "did you mean" not in cli.fails("topic", "create", f"{name}-2", "-c", "retention.ms=x")


def test_what_counts_from_a_start_on(cli: CommandLine) -> None:
    said = cli.fails("config", "set", "--broker", "1", "num.partitions=6")
    assert said.endswith("it counts from a start on: the broker's file of settings has it, or --set of `kbroker start`")


def test_a_broker_that_there_is_not(cli: CommandLine) -> None:
    said = cli.fails("config", "describe", "--broker", "99")
    assert said.endswith("`kbroker broker list` shows which brokers there are")


def test_where_nothing_is_set(cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)
    done = cli.ok("config", "describe", "--topic", name)
    assert (
        done.err
        == f"kbroker: topic {name} has no configs of its own; --all shows all values in force, and their sources\n"
    )
    assert cli.ok("config", "describe", "--topic", name, "retention.ms").err == ""
