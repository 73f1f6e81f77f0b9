"""`kbroker produce` and `kbroker consume`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from confluent_kafka import Producer

from kbroker import Acl, Broker
from tests.cli.conftest import CommandLine

WAIT_S = 20
LOGIN = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=alice", "sasl.password=a"]
QUICK = ["-X", "heartbeat.interval.ms=200"]


def all_of(cli, topic, *more):
    return cli.ok("consume", topic, "--from-beginning", "--until-end", *more)


def test_keys_headers_and_tombstones_come_back(anywhere, name):
    anywhere.ok("topic", "create", name)
    lines = b"k1\tv1\nk2\t\nno key\n\tempty key\nk\ta\tb\n\n"
    done = anywhere.ok("produce", name, "-k", "\\t", "-H", "h=1", "-H", "g=a=b", "-Z", stdin=lines)
    assert done.err == f"6 records written to {name}\n"
    assert done.out == b""
    records = [json.loads(line) for line in all_of(anywhere, name, "--json").lines]
    assert [(r["key"], r["value"]) for r in records] == [
        ("k1", "v1"),
        ("k2", None),
        (None, "no key"),
        (None, "empty key"),
        ("k", "a\tb"),
        (None, None),
    ]
    assert [r["offset"] for r in records] == [0, 1, 2, 3, 4, 5]
    assert all(r["headers"] == [{"key": "h", "value": "1"}, {"key": "g", "value": "a=b"}] for r in records)
    assert all(abs(r["timestamp"] / 1000 - time.time()) < 60 for r in records)

    assert all_of(anywhere, name).lines == ["v1", "", "no key", "empty key", "a\tb", ""]
    assert all_of(anywhere, name, "-f", "%o %k/%K %v/%S %h\\n").lines[1] == "1 k2/2 /-1 h=1,g=a=b"
    assert all_of(anywhere, name, "-Z", "-f", "%k=%v ").text.startswith("k1=v1 k2=NULL NULL=no key")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed(anywhere, name, codec):
    lines = b"".join(b"%d some text to press\n" % n for n in range(3000))
    anywhere.ok("topic", "create", name)
    anywhere.ok("produce", name, "-z", codec, stdin=lines)
    assert all_of(anywhere, name).out == lines


def test_without_tombstones_an_empty_line_is_an_empty_value(cli, name):
    cli.ok("produce", name, "-k", ":", stdin=b"\n:x\nk:\nlast without newline")
    records = [json.loads(line) for line in all_of(cli, name, "--json").lines]
    assert [(r["key"], r["value"]) for r in records] == [
        (None, ""),
        ("", "x"),
        ("k", ""),
        (None, "last without newline"),
    ]


def test_bytes_that_are_no_text(cli, name):
    cli.ok("produce", name, "-k", "\\x00", stdin=b"\xff\x00\xfe\r\n")
    (record,) = [json.loads(line) for line in all_of(cli, name, "--json").lines]
    assert (record["key_base64"], record["value_base64"]) == ("/w==", "/g0=")
    assert all_of(cli, name).out == b"\xfe\r\n"


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(cli, name, acks):
    cli.ok("topic", "create", name)
    assert cli.ok("produce", name, "--acks", acks, stdin=b"a\nb\n").err == f"2 records written to {name}\n"
    deadline = time.monotonic() + WAIT_S
    while all_of(cli, name).lines != ["a", "b"]:
        assert time.monotonic() < deadline


def test_partitions(cli, name):
    cli.ok("topic", "create", name, "-p", "3")
    for partition in range(3):
        cli.ok("produce", name, "-p", str(partition), stdin=b"".join(b"%d-%d\n" % (partition, n) for n in range(5)))
    assert sorted(all_of(cli, name, "-f", "%p-%o\\n").lines) == [f"{p}-{n}" for p in range(3) for n in range(5)]
    assert all_of(cli, name, "-p", "2").lines == [f"2-{n}" for n in range(5)]
    assert sorted(all_of(cli, name, "-p", "2", "-p", "0").lines) == [f"{p}-{n}" for p in (0, 2) for n in range(5)]
    assert cli.fails("produce", name, "-p", "3", stdin=b"x\n") == f"topic {name} has no partition 3"
    assert cli.fails("consume", name, "-p", "3") == f"topic {name} has no partition 3"


def test_equal_keys_go_to_one_partition(cli, name):
    cli.ok("topic", "create", name, "-p", "4")
    cli.ok("produce", name, "-k", ":", stdin=b"".join(b"k%d:%d\n" % (n % 7, n) for n in range(70)))
    where = [line.split() for line in all_of(cli, name, "-f", "%k %p\\n").lines]
    assert len(where) == 70
    assert len({tuple(each) for each in where}) == 7


@pytest.mark.parametrize(
    ("offset", "values"),
    [
        ("beginning", "0 1 2 3 4"),
        ("start", "0 1 2 3 4"),
        ("0", "0 1 2 3 4"),
        ("3", "3 4"),
        ("5", ""),
        ("-2", "3 4"),
        ("-9", "0 1 2 3 4"),
        ("+4", "4"),
        ("+9", ""),
        ("end", ""),
        ("@0", "0 1 2 3 4"),
        ("s@1970-01-01T00:00:03", "3 4"),
        ("@1970-01-01T00:00:01.500+00:00", "2 3 4"),
        ("@99999999", ""),
    ],
)
def test_where_to_start(cli, offset, values):
    topic = "where-to-start"
    if cli("topic", "create", topic, "-c", "retention.ms=-1").status == 0:
        producer = Producer({"bootstrap.servers": cli.bootstrap, "log_level": 0})
        for n in range(5):
            producer.produce(topic, str(n), timestamp=n * 1000 or 1)
        assert producer.flush(WAIT_S) == 0
    assert cli.ok("consume", topic, "-o", offset, "--until-end", "-f", "%v ").text.strip() == values


def test_an_offset_that_is_not_there(cli, name):
    cli.ok("produce", name, stdin=b"a\n")
    said = cli.fails("consume", name, "-o", "2")
    assert said == f"offset 2 of {name} [0] is out of range: it has offsets from 0 to 1"


def test_until_end_of_nothing(cli, name):
    cli.ok("topic", "create", name, "-p", "2")
    assert all_of(cli, name).out == b""
    assert all_of(cli, name, "-g", name, *QUICK).out == b""


@pytest.mark.java
def test_until_end_goes_past_the_marks_of_transactions(apache_kafka, name):
    """The last offset of a partition may be that of a transaction marker, which no consumer receives."""
    cli = CommandLine(apache_kafka.bootstrap)
    cli.ok("topic", "create", name)
    producer = Producer({"bootstrap.servers": cli.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(name, b"x")
        producer.flush(WAIT_S)
        end(WAIT_S)
    assert all_of(cli, name).lines == ["x", "x"]
    assert all_of(cli, name, "-X", "isolation.level=read_committed").lines == ["x"]


def test_count_and_timeout(cli, name):
    cli.ok("produce", name, stdin=b"".join(b"%d\n" % n for n in range(1000)))
    for count in (1, 3, 777):
        assert len(cli.ok("consume", name, "--from-beginning", "--count", str(count)).lines) == count
    began = time.monotonic()
    assert len(cli.ok("consume", name, "--from-beginning", "--timeout", "400").lines) == 1000
    assert 0.4 < time.monotonic() - began < 5


def test_several_topics(cli, name):
    for each in ("a", "b"):
        cli.ok("produce", f"{name}-{each}", stdin=each.encode())
    done = cli.ok("consume", f"{name}-a", f"{name}-b", "--from-beginning", "--count", "2", "-f", "%t:%v\\n")
    assert sorted(done.lines) == [f"{name}-a:a", f"{name}-b:b"]


def test_without_an_offset_it_prints_what_comes(cli, name):
    cli.ok("produce", name, stdin=b"old\n")
    with cli.started("consume", name, "--count", "3") as process:
        deadline = time.monotonic() + WAIT_S
        number = 0
        while process.poll() is None:
            assert time.monotonic() < deadline
            cli.ok("produce", name, stdin=b"new %d\n" % number)
            number += 1
        out, err = process.communicate()
    lines = out.decode().splitlines()
    assert (process.returncode, err) == (0, b"")
    assert len(lines) == 3
    assert all(line.startswith("new ") for line in lines)


def test_a_group_commits_what_was_printed_and_no_more(anywhere, name):
    anywhere.ok("topic", "create", name)
    anywhere.ok("produce", name, stdin=b"".join(b"%d\n" % n for n in range(10)))
    read = ["consume", name, "-g", name, "--from-beginning", *QUICK]
    assert anywhere.ok(*read, "--count", "4").lines == ["0", "1", "2", "3"]
    assert anywhere.ok(*read, "--count", "2").lines == ["4", "5"]
    (group,) = anywhere.ok("group", "describe", name, "--json").json
    assert group["partitions"][0]["current_offset"] == 6
    assert anywhere.ok(*read, "--until-end").lines == ["6", "7", "8", "9"]
    assert anywhere.ok(*read, "--until-end").lines == []


def test_a_group_starts_at_the_end_unless_told_otherwise(cli, name):
    cli.ok("produce", name, stdin=b"old\n")
    assert cli.ok("consume", name, "-g", name, "--until-end", *QUICK).out == b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-g", "g", "-p", "0"], "--group"),
        (["-g", "g", "-o", "3"], "--group"),
        (["--from-beginning", "-o", "3"], "exclude"),
        (["--json", "-f", "%v"], "exclude"),
        (["-f", "%q"], "%q"),
        (["-o", "soon"], "no offset"),
        (["-o", "@soon"], "no time"),
        (["--count", "0"], "--count"),
    ],
)
def test_wrong_usage_of_consume(cli, arguments, said):
    done = cli("consume", "t", *arguments)
    assert done.status == 2
    assert said in done.err


def test_wrong_usage_of_produce(cli):
    assert cli("produce", "t", "-H", "novalue").status == 2
    assert cli("produce", "t", "-k", "").status == 2
    assert cli("produce", "t", "-z", "rar").status == 2


def test_a_topic_that_is_not_there(cli, name):
    assert cli.fails("consume", name).startswith(f"topic {name} does not exist; ")
    assert cli.fails("consume", name, "-g", name).startswith(f"topic {name} does not exist; ")
    assert name not in cli.ok("topic", "list").text


def test_a_topic_that_produce_creates_is_told_of(anywhere, name):
    done = anywhere("produce", name, stdin=b"one\n")
    assert (done.status, done.err.splitlines()) == (
        0,
        [f"kbroker: topic {name} did not exist; the broker has created it", f"1 record written to {name}"],
    )
    assert anywhere("produce", name, stdin=b"two\n").err == f"1 record written to {name}\n"


def test_who_may_not_write_is_told_which_acl_lets_him():
    may_look = Acl(allow_principal="User:alice", operation="Describe", topic="t")
    with Broker(users={"alice": "a"}, acls=[may_look]) as broker:
        broker.topics.create("t")
        cli = CommandLine(broker.bootstrap_servers)
        options = [word for setting in LOGIN for word in ("-X", setting)]
        for acks, error in (("all", "CLUSTER_AUTHORIZATION_FAILED"), ("1", "TOPIC_AUTHORIZATION_FAILED")):
            done = cli("produce", "t", "--acks", acks, *options, stdin=b"one\n")
            assert done.status == 1
            assert done.err.splitlines()[-1].endswith(
                f"({error}); an administrator of ACLs allows it: "
                "`kbroker acl add --allow-principal User:NAME --producer --topic TOPIC`"
            )


@pytest.mark.long
def test_produce_ends_where_the_broker_is_gone_before_it_acknowledged_anything():
    with Broker() as broker:
        broker.topics.create("t")
        broker.faults.delay("Produce", 60_000)
        broker.requests.clear()
        started = CommandLine(broker.bootstrap_servers).started("produce", "t")
        process = started.__enter__()
        process.stdin.write(b"one\n")
        process.stdin.flush()
        broker.wait_for(lambda b: b.requests.of("Produce") or None)
    try:
        process.stdin.close()
        assert process.wait(WAIT_S) == 1
        assert [line.rpartition(":")[2] for line in process.stderr.read().decode().splitlines()] == [
            " connection refused",
            "0 records written to t",
            " connection refused",
        ]
    finally:
        started.__exit__(None, None, None)


def test_a_record_that_fails(anywhere, name):
    anywhere.ok("topic", "create", name, "-c", "max.message.bytes=2000")
    done = anywhere("produce", name, stdin=b"small\n" + b"x" * 5000 + b"\n")
    assert done.status == 1
    counted, failed = done.err.splitlines()
    assert counted.endswith(f"written to {name}")
    assert "failed" in failed
    assert "MESSAGE" in failed or "RECORD" in failed
    assert all(len(line) < 100 for line in all_of(anywhere, name).lines)


def test_the_record_at_fault_is_told_of_not_its_neighbours(cli, name):
    cli.ok("topic", "create", name, "-p", "1", "-c", "cleanup.policy=compact")
    done = cli("produce", name, "-k", ":", stdin=b"k1:v1\nk2:v2\nno key\n")
    assert done.status == 1
    assert "3 records failed" in done.err
    assert "Compacted topic cannot accept message without key" in done.err


def test_a_record_that_is_too_large_for_the_client(cli, name):
    done = cli("produce", name, stdin=b"x" * 2_000_000 + b"\n")
    assert done.status == 1
    assert "1 record failed" in done.err
    cli.ok("topic", "create", f"{name}-2", "-c", "max.message.bytes=3000000")
    cli.ok("produce", f"{name}-2", "-X", "max.request.size=3000000", stdin=b"x" * 2_000_000 + b"\n")


@pytest.mark.long
def test_an_interrupted_producer_has_written_what_it_read(cli, name):
    cli.ok("topic", "create", name)
    with cli.started("produce", name) as process:
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        deadline = time.monotonic() + WAIT_S
        while all_of(cli, name).lines != ["one", "two"]:  # a line is written without waiting for the next one
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.stderr.read() == f"2 records written to {name}\n".encode()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_member_that_leaves_its_group(cli, name, number):
    cli.ok("produce", name, stdin=b"a\n")
    with cli.started("consume", name, "-g", name, "--from-beginning") as process:
        assert process.stdout.readline() == b"a\n"
        deadline = time.monotonic() + WAIT_S
        while cli.ok("group", "describe", name, "--json").json[0]["partitions"][0]["current_offset"] != 1:
            assert time.monotonic() < deadline
        process.send_signal(number)
        assert process.wait(WAIT_S) == 128 + number
        assert process.stderr.read() == b""
    (group,) = cli.ok("group", "describe", name, "--json").json
    assert group["state"] == "Empty"


@pytest.mark.long
def test_a_member_that_ends_while_it_joins_leaves_its_group(name):
    """A member whose JoinGroup is parked cannot leave on the same connection; a second signal does not interrupt it."""
    with Broker({"group.initial.rebalance.delay.ms": "600000"}) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        cli.ok("topic", "create", name)

        def members():
            done = cli("group", "describe", name, "--json")
            return done.json[0]["members"] if done.status == 0 else []

        with cli.started("consume", name, "-g", name) as process:
            deadline = time.monotonic() + WAIT_S
            while not members():
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) in (130, -signal.SIGTERM)
            assert process.stderr.read() == b""
        assert members() == []


@pytest.fixture(scope="module")
def numbers(cli):
    """Create a topic with more lines than a pipe can buffer."""
    producer = Producer({"bootstrap.servers": cli.bootstrap, "log_level": 0, "linger.ms": 50})
    for n in range(100_000):
        producer.produce("numbers", str(n))
    assert producer.flush(WAIT_S) == 0
    return "numbers"


def test_a_reader_that_goes_away_is_no_failure(cli, numbers):
    with cli.started("consume", numbers, "--from-beginning") as process:
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == b""


def test_a_pipe_through_head(cli, numbers):
    command = f"'{os.sys.executable}' -m kbroker consume {numbers} --from-beginning | head -1; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "KBROKER_BOOTSTRAP": cli.bootstrap}
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=WAIT_S, check=True, env=environment)
    assert (done.stdout, done.stderr) == (b"0\n0\n", b"")


@pytest.mark.long
def test_many_records_need_little_memory(cli, name):
    """Records from a pipe wait for the broker instead of accumulating in memory."""
    psutil = pytest.importorskip("psutil")
    line = b"x" * 999 + b"\n"
    cli.ok("topic", "create", name)
    with cli.started("produce", name) as process:
        most = 0
        for _ in range(80):
            process.stdin.write(line * 1000)
            most = max(most, psutil.Process(process.pid).memory_info().rss)
        process.stdin.close()
        assert process.wait() == 0
        assert process.stderr.read() == f"80000 records written to {name}\n".encode()
    assert most < 110 * 1024 * 1024


def test_a_record_over_a_limit_names_it(cli, name):
    cli.ok("topic", "create", name, "--config", "max.message.bytes=2000", "--replication-factor", "1")
    told = cli("produce", name, stdin=b"x" * 3000).err.splitlines()[-1]
    assert "failed: a batch is larger than the topic's max.message.bytes=2000 (MESSAGE_SIZE_TOO_LARGE)" in told
    assert told.endswith(f"`kbroker topic alter {name} -c max.message.bytes=BYTES` changes it")
    cli.ok("topic", "alter", name, "--delete-config", "max.message.bytes")
    told = cli("produce", name, "-X", "max.request.size=3000000", stdin=b"x" * 2_000_000).err.splitlines()[-1]
    assert "larger than the topic's max.message.bytes=1048588" in told
    told = cli("produce", name, "-X", "max.request.size=1000", stdin=b"x" * 3000).err.splitlines()[-1]
    limit = "a record is larger than the client's limit of 1000 bytes (-X max.request.size=BYTES sets it)"
    assert told.endswith(f"1 record failed: {limit}")


def test_headers_keys_and_nulls_from_lines(anywhere, name):
    anywhere.ok("topic", "create", name)
    lines = b"a:1,b:2\tk\tv\n\tk\t~\na:3\tk\tv:w\nplain\n"
    form = ["-k", "\\t", "--headers-delimiter", "\\t", "--null-marker", "~"]
    anywhere.ok("produce", name, *form, stdin=lines)
    told = [json.loads(line) for line in anywhere.ok("consume", name, "--from-beginning", "-c", "4", "--json").lines]
    assert [(each["key"], each["value"], each["headers"]) for each in told] == [
        ("k", "v", [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]),
        ("k", None, []),
        ("k", "v:w", [{"key": "a", "value": "3"}]),
        (None, "plain", []),
    ]


def test_headers_with_other_separators(cli, name):
    cli.ok("topic", "create", name)
    form = ["--headers-delimiter", "|", "--headers-separator", ";", "--headers-key-separator", "="]
    cli.ok("produce", name, *form, "-H", "all=yes", stdin=b"a=1;b=x:y|v\n")
    (line,) = cli.ok("consume", name, "--from-beginning", "-c", "1", "-f", "%h %v\\n").lines
    assert line == "all=yes,a=1,b=x:y v"
    assert cli("produce", name, "--headers-separator", "").status == 2


def test_one_record_at_a_time(anywhere, name):
    anywhere.ok("topic", "create", name)
    assert anywhere.ok("produce", name, "--sync", stdin=b"a\nb\nc\n").err == f"3 records written to {name}\n"
    assert anywhere.ok("consume", name, "--from-beginning", "--max-messages", "3").lines == ["a", "b", "c"]


def test_topics_that_match(anywhere, name):
    for each in ("one", "two"):
        anywhere.ok("topic", "create", f"{name}-{each}")
        anywhere.ok("produce", f"{name}-{each}", stdin=f"{each}\n".encode())
    read = anywhere.ok("consume", "--include", f"{name}-.*", "--from-beginning", "--until-end")
    assert sorted(read.lines) == ["one", "two"]
    assert anywhere.fails("consume", "--include", "none-such").startswith("no topic matches none-such; ")
    assert anywhere("consume", "--include", "x", "t").status == 2


def test_what_is_not_committed_is_left_out(cli, name):
    cli.ok("topic", "create", name)
    producer = Producer({"bootstrap.servers": cli.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(name, "gone")
    assert producer.flush(WAIT_S) == 0
    producer.abort_transaction(WAIT_S)
    read = ["consume", name, "--from-beginning", "--until-end", "--isolation-level"]
    assert cli.ok(*read, "read_uncommitted").lines == ["gone"]
    assert cli.ok(*read, "read_committed").lines == []


def test_a_topic_that_no_broker_creates_is_told_of_at_once():
    """The error appears immediately, not after the time that a client waits for a topic to be created."""
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        broker.topics.create("orders")
        cli = CommandLine(broker.bootstrap_servers)
        said = cli.fails("produce", "ordres", "-X", "max.block.ms=20000", stdin=b"x\n")
        assert said == "topic ordres does not exist; did you mean orders? (auto.create.topics.enable is false)"
        assert cli.ok("topic", "list").lines[1:] == ["orders           1         1"]
