"""A broker inside the process, and the pytest plugin."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer

import kbroker
from kbroker import Broker, LogDirError
from kbroker.config.model import ConfigError

pytest_plugins = ["pytester"]


def produce(broker, topic, *values):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def consume(broker, topic, count):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values = []
    deadline = time.monotonic() + 20
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def test_produce_and_consume():
    with Broker() as broker:
        produce(broker, "t", b"a", b"b")
        assert consume(broker, "t", 2) == [b"a", b"b"]
        directory = broker.data_dir
    assert not os.path.exists(directory)


def test_two_in_one_process_know_nothing_of_each_other():
    with Broker() as one, Broker() as two:
        assert one.bootstrap_servers != two.bootstrap_servers
        assert one.cluster_id != two.cluster_id
        produce(one, "t", b"1")
        produce(two, "t", b"2")
        assert consume(one, "t", 1) == [b"1"]
        assert consume(two, "t", 1) == [b"2"]


def test_async_with():
    async def use():
        async with Broker() as broker:
            host, port = broker.bootstrap_servers.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()

    asyncio.run(use())


def test_data_stays_where_a_directory_is_given(tmp_path):
    with Broker(data_dir=tmp_path) as broker:
        produce(broker, "kept", b"x", b"y")
        cluster = broker.cluster_id
    with Broker(data_dir=str(tmp_path)) as broker:
        assert broker.cluster_id == cluster
        assert consume(broker, "kept", 2) == [b"x", b"y"]


def test_what_cannot_start_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker({"num.partitions": "many"}).start()
    with Broker(data_dir=str(tmp_path)) as broker:
        with pytest.raises(OSError, match="in use"):
            Broker(port=int(broker.bootstrap_servers.split(":")[1])).start()
        with pytest.raises(Exception, match="in use by another process"):
            Broker(data_dir=str(tmp_path)).start()


def test_the_plugin_gives_a_broker_and_a_topic(pytester):
    pytester.makepyfile(
        """
        from confluent_kafka import Producer

        def test_it(kafka_broker, kafka_topic):
            producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
            producer.produce(kafka_topic, b"x")
            assert producer.flush(10) == 0
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


@pytest.mark.long
def test_the_plugin_is_silent_where_warnings_are_errors(pytester):
    pytester.makepyfile("def test_it(kafka_topic): assert kafka_topic")
    # pytest-asyncio warns if it is not configured.
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("address", ["127.0.0.1:{closed}", "nonsense", "127.0.0.1:{closed},127.0.0.1:99999"])
def test_the_plugin_says_in_one_line_that_no_broker_is_there(pytester, monkeypatch, address):
    pytester.makepyfile("def test_it(kafka_topic): pass")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", address.format(closed=probe.getsockname()[1]))
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rN")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no broker at KAFKA_BOOTSTRAP_SERVERS: *"])
    assert "Traceback" not in result.stdout.str()


def run(*arguments, **options):
    command = [sys.executable, "-m", "kbroker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **options)


def test_a_bad_setting_is_one_line_and_exit_1(tmp_path):
    done = run("start", "--data-dir", str(tmp_path / "data"), "--set", "num.partitions=many")
    assert done.returncode == 1
    assert "num.partitions" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.long
@pytest.mark.parametrize("given", [False, True])
def test_a_program_that_ends_without_stopping_stops_its_broker(tmp_path, given):
    own = {"data_dir": str(tmp_path / "own")} if given else {}
    program = f"""
import sys
from kbroker import Broker
broker = Broker(**{own!r}).start()
print(broker.data_dir)
sys.exit(3)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert os.path.exists(done.stdout.strip()) is given
    if given:
        assert (tmp_path / "own" / ".kafka_cleanshutdown").exists()


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("start", "--data-dir", str(tmp_path / "d"), "--listen", f"127.0.0.1:{port}", "--log-level", "error")
    assert done.returncode == 1
    assert f"{port}" in done.stderr
    assert "in use" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.long
@pytest.mark.parametrize("below", ["", "/deeper/still"])
def test_a_directory_that_cannot_be_made_is_one_line_and_exit_1(tmp_path, below):
    (tmp_path / "file").touch()
    directory = f"{tmp_path}/file{below}"
    done = run("start", "--data-dir", directory, "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kbroker: log directory {directory} cannot be used: ")
    assert line.endswith("Not a directory")
    with pytest.raises(LogDirError, match="cannot be used"):
        Broker(data_dir=directory).start()


def test_a_port_in_use_on_every_interface_is_named():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("start", "--memory", "--listen", f":{port}", "--log-level", "error")
    assert done.returncode == 1
    assert f"cannot listen on 0.0.0.0:{port}: " in done.stderr


def first_lines(*arguments):
    """Start a broker and stop it; return what it printed."""
    command = [sys.executable, "-m", "kbroker", "start", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            first = [process.stdout.readline(), process.stdout.readline()]
            process.terminate()
            process.communicate()
        finally:
            watchdog.cancel()
    assert process.returncode == 0
    return first


def test_start_says_where_it_is_and_where_its_data_lies(tmp_path):
    serves, data = first_lines("--listen", "PLAINTEXT://127.0.0.1:0", "--data-dir", f"{tmp_path}/d")
    assert serves.startswith("kbroker serves at 127.0.0.1:")
    assert data == f"its data lies in {tmp_path}/d\n"
    assert first_lines("--listen", "127.0.0.1:0", "--memory")[1] == "its data goes when it stops\n"


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux tells who holds a lock")
def test_who_uses_a_directory_is_named(tmp_path):
    with Broker(data_dir=str(tmp_path)):
        done = run("start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--log-level", "error")
    assert done.returncode == 1
    assert done.stderr == f"kbroker: log directory {tmp_path} is in use by another process (pid {os.getpid()})\n"


def test_a_directory_of_another_node_is_refused_and_left_alone(tmp_path):
    with Broker({"node.id": "7"}, data_dir=str(tmp_path)):
        pass
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    done = run("start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--log-level", "error")
    assert done.returncode == 1
    assert "belongs to node 7" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_a_start_that_fails_leaves_no_ready_file_of_an_earlier_broker(tmp_path):
    ready = tmp_path / "ready.json"
    ready.write_text("{}")
    done = run("start", "--memory", "--set", "num.partitions=0", "--ready-file", str(ready))
    assert done.returncode == 1
    assert not ready.exists()
    ready.write_text(json.dumps({"pid": os.getpid()}))
    assert run("start", "--memory", "--set", "num.partitions=0", "--ready-file", str(ready)).returncode == 1
    assert ready.exists(), "that of a broker that runs"
    ready.unlink()
    ready.mkdir()
    done = run("start", "--memory", "--listen", "127.0.0.1:0", "--ready-file", str(ready))
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_ready_file_that_cannot_be_is_told_before_anything_starts(tmp_path):
    ready = tmp_path / "missing" / "ready.json"
    done = run("start", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--ready-file", str(ready))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"kbroker: ready file {ready}: No such file or directory\n"
    assert not (tmp_path / "d").exists()


def test_the_ready_file_and_a_clean_end(tmp_path):
    ready = tmp_path / "ready.json"
    command = [
        sys.executable,
        "-m",
        "kbroker",
        "start",
        "--memory",
        "--listen",
        "127.0.0.1:0",
        "--ready-file",
        str(ready),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told = json.loads(ready.read_text())
        assert told["pid"] == process.pid
        assert set(told) == {"bootstrap_servers", "node_id", "cluster_id", "pid", "data_dir"}
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "[KafkaServer id=1] started" in err
    assert told["bootstrap_servers"] in out
    assert not os.path.exists(told["data_dir"])
    assert not ready.exists()


def test_strict_refuses_an_unknown_key():
    with pytest.raises(kbroker.ConfigError, match=r"did you mean num\.partitions"):
        Broker({"num.partitons": "3"}, strict=True).start()
    with pytest.warns(UserWarning, match=r"did you mean num\.partitions"), Broker({"num.partitons": "3"}):
        pass


def test_what_embedders_import_is_exported():
    from kbroker.clock import Clock
    from kbroker.config.model import ConfigError
    from kbroker.pytest_plugin import ExternalBroker

    assert (kbroker.Clock, kbroker.ConfigError, kbroker.ExternalBroker) == (Clock, ConfigError, ExternalBroker)
    assert all(hasattr(kbroker, name) for name in kbroker.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = kbroker.Nothing


def test_a_process_without_descriptors_left_is_told_so(monkeypatch):
    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("kbroker.embed.new_event_loop", none_left)
    broker = Broker()
    with pytest.raises(OSError, match="Too many open files"):
        broker.start()
    assert not os.path.exists(broker._data_dir)
