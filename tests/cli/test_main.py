"""What all verbs share: errors in one line, client settings, --debug, and the broker's address."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from kbroker import Broker
from kbroker.admin.client_properties import parse_settings
from kbroker.cli.main import GROUPS
from tests.cli.conftest import CommandLine, the_line

VERBS_BELOW = ("broker", "cluster", "config", "group", "record", "transaction", "user")
VERBS = [["topic", "list"], ["produce", "t"], ["consume", "t"], ["group", "list"]]


FOR_EVER = ["-X", "bootstrap.timeout.ms=600000"]
"""Makes a client retry for longer than a test lasts."""


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_broker_that_is_not_there_is_one_line_at_once(verb):
    """An unreachable broker is one line immediately, without the client's own retries."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        cli = CommandLine(f"127.0.0.1:{probe.getsockname()[1]}")
        done = cli.elsewhere(*verb, *FOR_EVER)
    assert the_line(done).startswith(f"no broker answers at {cli.bootstrap}: connection refused; does one run there")


def test_every_address_has_its_reason():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{probe.getsockname()[1]}"
        done = CommandLine(f"{closed},no..host:9092").elsewhere("topic", "list", *FOR_EVER)
    both = f"no broker answers at {closed}: connection refused; no..host:9092: unknown host; "
    assert the_line(done).startswith(both)


@pytest.mark.long
def test_a_broker_that_is_silent_is_given_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        cli = CommandLine(f"127.0.0.1:{silent.getsockname()[1]}")
        told = the_line(cli.elsewhere("topic", "list"))
        assert told.startswith(f"no broker answers at {cli.bootstrap}; what listens there does not answer as a broker")


@pytest.mark.parametrize(
    "arguments", [["--debug", "topic", "describe", "nope"], ["topic", "describe", "nope", "--debug"]]
)
def test_debug_shows_the_traceback_wherever_it_stands(cli, arguments):
    done = cli.elsewhere(*arguments)
    assert done.status == 1
    assert "Traceback" in done.err
    assert "topic nope does not exist" in done.err


def test_debug_after_two_dashes_is_an_argument(cli):
    assert cli.fails("topic", "describe", "--", "--debug").startswith("topic --debug does not exist; ")


@pytest.mark.long
def test_where_the_broker_is(cli, name):
    cli.ok("topic", "create", name)
    describe = [sys.executable, "-m", "kbroker", "topic", "describe", name, "-X", "bootstrap_timeout_ms=300"]

    def run(*arguments, **environment):
        done = subprocess.run([*describe, *arguments], capture_output=True, timeout=30, check=False, env=environment)
        return done.returncode

    here, nowhere = cli.bootstrap, "127.0.0.1:1"
    assert run(KAFKA_BOOTSTRAP_SERVERS=here) == 0
    assert run(KBROKER_BOOTSTRAP=here, KAFKA_BOOTSTRAP_SERVERS=nowhere) == 0
    assert run(KBROKER_BOOTSTRAP=nowhere, KAFKA_BOOTSTRAP_SERVERS=here) == 1
    assert run("-b", here, KBROKER_BOOTSTRAP=nowhere) == 0
    assert run("-b", f"{nowhere}, {here}", "-X", "bootstrap_timeout_ms=5000") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-b", "nowhere"], "HOST:PORT"),
        (["-b", "host:port"], "HOST:PORT"),
        (["-b", "host:99999"], "HOST:PORT"),
        (["-b", " , "], "empty"),
        (["-X", "novalue"], "KEY=VALUE"),
        (["-X", "securty.protocol=SSL"], "did you mean security.protocol"),
        (["-X", "group.protocol=consumer"], "kafka-python, has no setting 'group.protocol'\n"),
        (["-X", "transactional.id=x"], "writes without transactions"),
        (["-X", "request.timeout.ms=soon"], "takes a number"),
        (["-X", "check.crcs=maybe"], "true or false"),
        (["-X", "partitioner=mine"], "cannot be set"),
        (["-X", "security.protocol=TLS"], "SASL_SSL, not 'TLS'"),
    ],
)
def test_wrong_settings(cli, arguments, said):
    done = cli("topic", "list", *arguments)
    assert done.status == 2
    assert said in done.err


def test_settings_are_read_as_what_the_client_wants():
    assert parse_settings(
        (
            "security.protocol=SASL_SSL",
            "sasl.password=12=34",
            "ssl-cafile=/x",
            "request_timeout_ms=1000",
            "receive.buffer.bytes=65536",
            "ssl.check.hostname=false",
            "acks=all",
            "api.version=2.8",
        )
    ) == {
        "security_protocol": "SASL_SSL",
        "sasl_plain_password": "12=34",
        "ssl_cafile": "/x",
        "request_timeout_ms": 1000,
        "receive_buffer_bytes": 65536,
        "ssl_check_hostname": False,
        "acks": -1,
        "api_version": (2, 8),
    }


def test_settings_that_do_not_go_together_are_one_line(cli):
    said = cli.fails("produce", "t", "-X", "enable.idempotence=true", "--acks", "1")
    assert said.startswith("bad client setting: ")


def test_what_start_prints_works():
    """The lines that `kbroker start` prints for copying work as stated."""
    with Broker() as broker:
        cli = CommandLine(broker.bootstrap_servers)
        cli.ok("topic", "create", "hello")
        assert cli.ok("produce", "hello", stdin=b"hello, world\n").err == "1 record written to hello\n"
        assert cli.ok("consume", "hello", "--from-beginning", "--count", "1").text == "hello, world\n"


def test_help_lists_the_verbs_in_groups(cli):
    said = cli.ok("--help").text
    assert "Commands:" not in said
    at = [said.index(f"\n{title}:\n") for title in GROUPS]
    assert at == sorted(at)
    assert all(f"\n  {verb} " in said for verbs in GROUPS.values() for verb in verbs)


def test_help_of_every_verb(cli):
    for verb in (["start"], ["topic"], ["produce"], ["consume"], ["group"], ["group", "reset"], ["topic", "create"]):
        assert cli.ok(*verb, "--help").text.startswith("Usage: kbroker " + " ".join(verb))


@pytest.mark.parametrize("verb", ["topic", "group", "log", "pipeline", "fault", "clock"])
def test_no_line_of_a_list_of_verbs_is_cut_off(cli, verb):
    listed = cli.ok(verb, "--help").text.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_a_verb_that_is_nearly_there(cli):
    done = cli("topics", "list")
    assert done.status == 2
    assert done.err.endswith("No such command 'topics'. Did you mean 'topic'?\n")
    assert cli("xyz").err.endswith("No such command 'xyz'.\n")
    assert "No such option" in cli("--topics").err


def test_help_tells_of_each_verb_in_a_whole_sentence(cli):
    for verb in VERBS_BELOW:
        lines = cli.ok(verb, "--help").lines
        commands = lines[lines.index("Commands:") + 1 :]
        assert commands
        assert not [each for each in commands if each.endswith("...")], verb


def test_a_protocol_in_front_of_an_address_is_passed_over_as_by_java(cli):
    assert cli.ok("broker", "list", "-b", f"PLAINTEXT://{cli.bootstrap}").lines
    assert "--bootstrap takes HOST:PORT" in cli("broker", "list", "-b", "PLAINTEXT://127.0.0.1").err


@pytest.mark.parametrize(("given", "near"), [("sasl.pasword", "sasl.password"), ("ssl_ca_locaton", "ssl_ca_location")])
def test_a_setting_of_another_client_that_is_nearly_there(cli, given, near):
    done = cli("topic", "list", "-X", f"{given}=x")
    assert done.status == 2
    assert done.err.endswith(f"has no setting {given!r}; did you mean {near}?\n")


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "{name}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from kbroker.cli.entry import main
sys.argv[1:] = ["start", "--listen", "127.0.0.1:0", "--memory"]
main()
"""


@pytest.mark.parametrize(("name", "status"), [("click", -2), ("kbroker.cli.start", 130)])
def test_ctrl_c_while_the_program_is_imported(name: str, status: int) -> None:
    """Before the command line exists, the signal ends the process, which a shell reports as 130."""
    command = [sys.executable, "-c", INTERRUPTED.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (status, "", "")


def test_ctrl_c_that_python_makes_an_error_of(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("kbroker.cli.main.import_module", interrupted)
    done = cli("topic", "list")
    assert (done.status, done.err) == (130, "")
