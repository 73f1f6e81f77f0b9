"""`kbroker perf`: what it counts, with each client, and what it prints."""

from __future__ import annotations

import builtins
import json
import os
import pty
import signal
import subprocess
import sys

import click
import pytest

from kbroker import Broker
from kbroker.admin.client_properties import parse_settings
from kbroker.admin.connection import Connection
from kbroker.cli.librdkafka import settings_of
from kbroker.cli.perf.produce import _Measured, _values
from kbroker.cli.perf.receivers import open_receiver
from tests.cli.conftest import CommandLine

CLIENTS = ["confluent-kafka", "kafka-python"]
PERCENTILES = ["p50", "p95", "p99", "p99.9"]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_produced_is_there_and_is_consumed(anywhere, name, client):
    anywhere.ok("topic", "create", name, "-p", "2")
    sent = ["perf", "produce", name, "--records", "500", "--record-size", "100", "--client", client, "-o", "json"]
    told = anywhere.ok(*sent).json
    assert told["client"].startswith(f"{client} ")
    assert (told["records"], told["failed"], told["mb"]) == (500, 0, round(500 * 100 / 1024 / 1024, 3))
    times = told["latency_ms"]
    assert 0 < times["min"] <= times["p50"] <= times["p95"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert times["max"] / 1000 <= told["seconds"] + 0.1
    ends = anywhere.ok("topic", "offsets", name, "--json").json
    assert sum(each["offset"] for each in ends) == 500

    read = anywhere.ok("perf", "consume", name, "--records", "500", "--client", client, "-o", "json").json
    assert (read["records"], read["mb"]) == (500, told["mb"])
    assert read["fetch_seconds"] <= read["seconds"]
    assert read["fetch_records_per_s"] >= read["records_per_s"]
    assert "kbroker-perf-" not in anywhere.ok("group", "list").text


@pytest.mark.parametrize("client", CLIENTS)
def test_a_record_goes_there_and_comes_back(anywhere, name, client):
    anywhere.ok("topic", "create", name, "-p", "2")
    anywhere.ok("produce", name, stdin=b"what was there before\n")
    wanted = ["--records", "30", "--warmup-records", "10", "--record-size", "50", "--client", client]
    told = anywhere.ok("perf", "latency", name, *wanted, "--json").json
    assert (told["records"], told["warmup_records"]) == (20, 10)
    assert 0 < told["latency_ms"]["p50"] <= told["latency_ms"]["max"] <= told["seconds"] * 1000
    ends = anywhere.ok("topic", "offsets", name, "--json").json
    assert sum(each["offset"] for each in ends) == 31


def test_figures_for_people(cli, name):
    cli.ok("topic", "create", name)
    lines = [line.split() for line in cli.ok("perf", "produce", name, "--records", "10", "--record-size", "1").lines]
    assert ["records", "10"] in lines
    assert {line[0] for line in lines} >= {"client", "MB/s", "records/s", *PERCENTILES}


def test_warm_up_counts_in_no_figure(cli, name):
    cli.ok("topic", "create", name)
    wanted = ["--records", "100", "--warmup-records", "90", "--payload-monotonic", "--json"]
    told = cli.ok("perf", "produce", name, *wanted).json
    assert (told["records"], told["warmup_records"]) == (10, 90)
    (measured,) = [_Measured(1)]
    warm, steady = measured.expect(0, 5), measured.expect(1, 7)
    warm(9.0, None)
    steady(0.5, None)
    assert (measured.run.records, measured.run.octets, measured.run.times.percentile(1.0)) == (1, 7, 0.5)
    assert measured.done == 2


def test_no_faster_than_is_asked_for(cli, name):
    cli.ok("topic", "create", name)
    told = cli.ok(
        "perf", "produce", name, "--records", "200", "--record-size", "1", "--throughput", "400", "--json"
    ).json
    assert told["seconds"] >= 0.49  # the last record may be sent 2 ms early
    assert told["records_per_s"] <= 409


@pytest.mark.parametrize("client", CLIENTS)
def test_within_transactions(cli, name, client):
    cli.ok("topic", "create", name)
    wanted = ["--records", "20", "--payload-monotonic", "--transactional-id", name, "--client", client]
    assert cli.ok("perf", "produce", name, *wanted, "--json").json["records"] == 20
    (listed,) = [each for each in cli.ok("transaction", "list", "--json").json if each["transactional_id"] == name]
    assert listed["state"] == "CompleteCommit"
    read = cli.ok("consume", name, "--from-beginning", "--until-end", "-X", "isolation.level=read_committed").lines
    assert read == [str(each) for each in range(20)]


def test_values(tmp_path):
    file = tmp_path / "values"
    file.write_bytes(b"one;two;;")
    with file.open("rb") as opened:
        chosen = _values(None, opened, ";")
        assert {next(chosen) for _ in range(100)} == {b"one", b"two"}
    letters = _values(40, None, "")
    assert {len(next(letters)) for _ in range(10)} == {40}
    assert next(letters) != next(letters)
    numbers = _values(None, None, "")
    assert [next(numbers) for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("client", CLIENTS)
def test_records_that_fail_are_told(client):
    with Broker({"message.max.bytes": 200}) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        cli.ok("topic", "create", "t")
        done = cli("perf", "produce", "t", "--records", "5", "--record-size", "5000", "--client", client, "--json")
    assert done.status == 1
    assert done.json["records"] == 0
    assert done.json["failed"] > 0
    assert "records failed: " in done.err


def test_records_that_do_not_come(cli, name):
    cli.ok("topic", "create", name)
    done = cli("perf", "consume", name, "--records", "1", "--timeout", "1", "--json")
    assert done.status == 1
    assert done.json["records"] == 0
    assert done.err.endswith("no record arrived for 1 ms; 0 of 1 were read\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["produce", "t", "--records", "5"], "give one of --record-size"),
        (["produce", "t", "--records", "5", "--record-size", "1", "--payload-monotonic"], "give one of --record-size"),
        (
            ["produce", "t", "--records", "5", "--record-size", "1", "--warmup-records", "5"],
            "leaves nothing to measure",
        ),
        (["produce", "t", "--records", "5", "--record-size", "1", "--throughput", "0"], "would send nothing"),
        (
            ["produce", "t", "--records", "5", "--record-size", "1", "--acks", "1", "--transactional-id", "x"],
            "transactions need --acks all",
        ),
        (["consume", "--records", "5"], "either topics or --include"),
        (["latency", "t", "--records", "5", "--warmup-records", "5"], "leaves nothing to measure"),
    ],
)
def test_wrong_usage(cli, arguments, said):
    done = cli("perf", *arguments)
    assert done.status == 2
    assert said in done.err


def test_a_topic_that_is_not_there(cli, name):
    for verb in (["produce", "--record-size", "1", "--records", "1"], ["consume", "--records", "1"], ["latency"]):
        assert cli.fails("perf", *verb, f"{name}-no").startswith(f"topic {name}-no does not exist; ")
    cli.ok("topic", "create", name)
    said = cli.fails("perf", "produce", name, "--records", "1", "--record-size", "1", "-p", "7")
    assert said == f"topic {name} has no partition 7; it has 1, from 0 on"


def test_without_confluent_kafka_the_other_client_is_measured(cli, name, monkeypatch):
    usual = builtins.__import__

    def without(module, *rest):
        if module == "confluent_kafka":
            raise ImportError(module)
        return usual(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    cli.ok("topic", "create", name)
    wanted = ["perf", "produce", name, "--records", "3", "--record-size", "1"]
    assert cli.ok(*wanted, "--json").json["client"].startswith("kafka-python ")
    done = cli(*wanted, "--client", "confluent-kafka")
    assert done.status == 2
    assert "pip install '.[perf]'" in done.err


def test_settings_for_librdkafka():
    pairs = ("security.protocol=SASL_SSL", "sasl.username=u", "sasl.password=p", "ssl.ca.location=/ca", "linger.ms=7")
    pairs += ("ssl.endpoint.identification.algorithm=", "batch.size=99", "fetch.max.wait.ms=20")
    found = settings_of(Connection("h:1", parse_settings(pairs)), {"linger_ms": 5, "acks": -1}, {})
    assert {key: found[key] for key in ("bootstrap.servers", "linger.ms", "acks", "batch.size")} == {
        "bootstrap.servers": "h:1",
        "linger.ms": 7,
        "acks": -1,
        "batch.size": 99,
    }
    assert (found["sasl.username"], found["sasl.password"], found["ssl.ca.location"]) == ("u", "p", "/ca")
    assert (found["ssl.endpoint.identification.algorithm"], found["fetch.wait.max.ms"]) == ("none", 20)
    with pytest.raises(click.UsageError, match="metric_group_prefix has no meaning for confluent-kafka"):
        settings_of(Connection("h:1", parse_settings(("metric_group_prefix=x",))), {}, {})


def test_an_interrupt_shows_what_was_found(cli, name):
    cli.ok("topic", "create", name)
    wanted = ["--records", "1000000", "--record-size", "10", "--throughput", "100", "--reporting-interval", "100"]
    with cli.started("perf", "produce", name, *wanted, "--json") as process:
        assert process.stderr is not None
        assert b" of 1,000,000 records, " in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert 0 < json.loads(out)["records"] < 1_000_000


def test_a_bar_on_a_terminal(cli, name):
    cli.ok("topic", "create", name)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "KBROKER_BOOTSTRAP": cli.bootstrap, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "kbroker", "perf", "produce", name, "--records", "60", "--record-size", "1"]
    try:
        done = subprocess.run(
            [*command, "--throughput", "100", "--json"],
            stderr=theirs,
            stdout=subprocess.PIPE,
            env=environment,
            timeout=30,
            check=True,
        )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert json.loads(done.stdout)["records"] == 60
    assert "\u2501" in shown
    assert "MB/s" in shown


@pytest.mark.parametrize("subscribed", ["t", "^t$"])
def test_kafka_python_knows_the_partitions_before_it_joins(subscribed):
    """Otherwise it sometimes assigns nothing and reads nothing: in one run of eight if Metadata takes 50 ms."""
    with Broker() as broker, broker.faults.delay("Metadata", 0.2):
        CommandLine(broker.bootstrap_servers).ok("topic", "create", "t", "-p", "2")
        connection = Connection(broker.bootstrap_servers, {})
        receiver = open_receiver(connection, "kafka-python", group="g", from_latest=False, fetch_size=1000)
        receiver.subscribe([subscribed])
        assert receiver._consumer._cluster.partitions_for_topic("t") == {0, 1}
        receiver.close()
