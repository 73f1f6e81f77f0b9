"""`kbroker container`: the rules of the apache/kafka image, without a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from compat_tests.harness.brokers import free_port
from kbroker.cli.container import CLUSTER_ID, container_settings
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from tests.cli.conftest import CommandLine

DOCKER = Path(__file__).parents[2] / "docker"
WAIT_S = 20


def settings(environment=None, file=""):
    found = container_settings(environment or {}, file, "/data", "box")
    BrokerConfig(found)  # every result must be a valid configuration
    return found


# -- from the environment to settings ------------------------------------------------------------------------------


def test_without_anything_clients_of_the_host_reach_it():
    assert settings() == {
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://localhost:9092",
    }


def test_variables_are_keys():
    found = settings(
        {
            "KAFKA_NUM_PARTITIONS": "7",
            "KAFKA_LOG_RETENTION_MS": "-1",
            "KAFKA_SASL__X___Y": "z",
            "KAFKA_HEAP_OPTS": "-Xmx1G",
            "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
            "KAFKA_JMX_PORT": "9999",
            "CLUSTER_ID": "x",
            "HOME": "/root",
        }
    )
    assert {key: value for key, value in found.items() if "listeners" not in key} == {
        "log.dirs": "/data",
        "num.partitions": "7",
        "log.retention.ms": "-1",
        "sasl_x-y": "z",
    }


def test_variables_win_over_the_mounted_file():
    file = (
        "num.partitions=3\nlog.dirs=/elsewhere\nlisteners=PLAINTEXT://:9095\nadvertised.listeners=PLAINTEXT://a:9095\n"
    )
    assert settings({"KAFKA_NUM_PARTITIONS": "5"}, file) == {
        "num.partitions": "5",
        "log.dirs": "/elsewhere",
        "listeners": "PLAINTEXT://:9095",
        "advertised.listeners": "PLAINTEXT://a:9095",
    }


@pytest.mark.parametrize(
    ("environment", "listeners", "advertised"),
    [
        (
            {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://example.org:19092"},
            "PLAINTEXT://0.0.0.0:19092",
            "PLAINTEXT://example.org:19092",
        ),
        (
            {
                "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
                "KAFKA_LISTENERS": "",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
            },
            "PLAINTEXT_HOST://0.0.0.0:9092,PLAINTEXT://0.0.0.0:19092",
            "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
        ),
        (
            {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://[::1]:9092"},
            "PLAINTEXT://0.0.0.0:9092",
            "PLAINTEXT://[::1]:9092",
        ),
        (
            {"KAFKA_LISTENERS": "PLAINTEXT://:9092", "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://a:1"},
            "PLAINTEXT://:9092",
            "PLAINTEXT://a:1",
        ),
        ({"KAFKA_LISTENERS": "PLAINTEXT://:9092"}, "PLAINTEXT://:9092", "PLAINTEXT://box:9092"),
        ({"KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9"}, "PLAINTEXT://0.0.0.0:9", "PLAINTEXT://box:9"),
        ({"KAFKA_LISTENERS": "PLAINTEXT://10.0.0.9:9092"}, "PLAINTEXT://10.0.0.9:9092", "PLAINTEXT://10.0.0.9:9092"),
        (
            {
                "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
                "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            },
            "PLAINTEXT://:9092,CONTROLLER://:9093",
            "PLAINTEXT://box:9092",
        ),
    ],
)
def test_listeners(environment, listeners, advertised):
    found = settings(environment)
    assert found["listeners"] == listeners
    assert found["advertised.listeners"] == advertised


def test_listeners_of_the_environment_replace_those_of_the_file():
    file = "listeners=PLAINTEXT://:9095\n"
    found = settings({"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://a:9092"}, file)
    assert found["listeners"] == "PLAINTEXT://0.0.0.0:9092"


def test_the_example_of_the_apache_image():
    """A KRaft node in one container, as its documentation writes it."""
    found = settings(
        {
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
            "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
            "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
            "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
        }
    )
    config = BrokerConfig(found)
    assert config.warnings == []
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)
    assert [each.name for each in config.listeners.bind] == ["PLAINTEXT_HOST", "PLAINTEXT"]


def test_a_controller_alone_is_refused():
    with pytest.raises(ConfigError, match="no separate controllers"):
        settings({"KAFKA_PROCESS_ROLES": "controller"})


# -- the process ---------------------------------------------------------------------------------------------------


@contextmanager
def running(command, ready, **environment):
    """Start a container's command; yields the process once the broker serves, and kills it at the end if necessary."""
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables) as process:
        try:
            deadline = time.monotonic() + WAIT_S
            while not ready.exists():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def container(tmp_path, *more):
    ready = tmp_path / "ready.json"
    options = ["--config", str(tmp_path / "server.properties"), "--data-dir", str(tmp_path / "data")]
    return ["kbroker", "container", *options, "--ready-file", str(ready), *more], ready


def test_it_serves_and_says_what_is_waited_for(tmp_path):
    port = free_port()
    (tmp_path / "server.properties").write_text("num.partitions=3\n")
    command, ready = container(tmp_path)
    variables = {
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_NODE_ID": "4",
        "KAFKA_HEAP_OPTS": "-Xmx1G",
    }
    with running(command, ready, **variables) as process:
        told = json.loads(ready.read_text())
        assert (told["node_id"], told["cluster_id"]) == (4, "4L6g3nShT-eMCtK--X86sw")
        assert told["data_dir"] == str(tmp_path / "data")
        cli = CommandLine(f"127.0.0.1:{port}")
        cli.ok("produce", "t", stdin=b"x\n")
        (topic,) = cli.ok("topic", "list", "--json").json
        assert topic["partitions"] == 3
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert err == b""
    lines = out.decode().splitlines()
    for waited_for in (
        r".*\[KafkaServer id=\d+\] started.*",  # Testcontainers for Python
        r".*Kafka Server started.*",  # the same with KRaft
        r".*Transitioning from RECOVERY to RUNNING.*",  # Testcontainers for Java
    ):
        assert len([line for line in lines if re.fullmatch(waited_for, line)]) == 1
    assert any("KAFKA_HEAP_OPTS is for a JVM" in line for line in lines)


@pytest.mark.long
def test_the_id_of_a_cluster(tmp_path):
    def start(**environment):
        command, ready = container(tmp_path)
        address = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0"}
        with running(command, ready, **address, **environment) as process:
            found = json.loads(ready.read_text())["cluster_id"]
            process.terminate()
            process.communicate(timeout=WAIT_S)
            return found

    assert start() == CLUSTER_ID
    assert start(CLUSTER_ID=CLUSTER_ID) == CLUSTER_ID
    shutil.rmtree(tmp_path / "data")
    assert start(CLUSTER_ID="MkU3OEVBNTcwNTJENDM2Qk") == "MkU3OEVBNTcwNTJENDM2Qk"
    assert start() == "MkU3OEVBNTcwNTJENDM2Qk"


def contents(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("verb", ["container", "start"])
def test_data_of_another_cluster_is_refused_and_left_alone(tmp_path, verb):
    data = tmp_path / "data"
    address = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0"}
    command, ready = container(tmp_path)
    with running(command, ready, CLUSTER_ID="MkU3OEVBNTcwNTJENDM2Qk", **address) as process:
        CommandLine(json.loads(ready.read_text())["bootstrap_servers"]).ok("produce", "t", stdin=b"x\n")
        process.terminate()
        process.communicate(timeout=WAIT_S)
    before = contents(data)
    assert before
    other = "4L6g3nShT-eMCtK--X86sw"
    if verb == "start":
        command = ["kbroker", "start", "--data-dir", str(data), "--cluster-id", other]
    variables = {"PATH": f"{Path(sys.executable).parent}", "CLUSTER_ID": other, **address}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=variables)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"belongs to cluster MkU3OEVBNTcwNTJENDM2Qk, not to cluster {other}" in line
    assert contents(data) == before


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"KAFKA_PROCESS_ROLES": "controller"}, "no separate controllers"),
        ({"KAFKA_NUM_PARTITIONS": "many"}, "num.partitions"),
        ({"KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "http://of.nobody"}, "sasl.oauthbearer.token.endpoint.url"),
        ({"KAFKA_LISTENERS": "nonsense"}, "nonsense"),
        ({"KAFKA_ZOOKEEPER_CONNECT": "zk:2181"}, "zookeeper.connect"),
    ],
)
def test_what_cannot_start_is_one_line(refused, tmp_path, environment, said):
    assert said in refused("container", "--config", str(tmp_path / "server.properties"), **environment)


def test_a_cluster_id_that_is_none_is_one_line(tmp_path):
    command, _ = container(tmp_path)
    variables = {"PATH": f"{Path(sys.executable).parent}", "CLUSTER_ID": "not an id"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=variables)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("kbroker: ")
    assert "cluster id" in line
    assert not (tmp_path / "data").exists()


# -- the image's files ---------------------------------------------------------------------------------------------


@pytest.fixture
def image(tmp_path):
    """Return the image's scripts, with their paths moved below a directory and matching options."""
    command, ready = container(tmp_path)
    for source, target in (("run", "etc/kafka/docker/run"), ("confluent", "etc/confluent/docker")):
        path = tmp_path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (DOCKER / source).is_dir() else shutil.copy)(DOCKER / source, path)
        for script in [path, *path.rglob("*")]:
            if script.is_file():
                script.write_text(script.read_text().replace('"$@"', " ".join(command[2:])))
    return tmp_path / "etc", ready


@pytest.mark.long
@pytest.mark.parametrize("module", ["java", "go", "node"])
def test_the_start_scripts_of_testcontainers_for_other_languages(image, tmp_path, module):
    """The scripts' commands after the host's port is known; all start the broker with the modules' variables."""
    directory, ready = image
    port, inside = free_port(), free_port()
    confluent = directory / "confluent/docker"
    advertised = f"export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{port},BROKER://127.0.0.1:{inside}"
    lines = {
        "java": [advertised, f"exec {directory}/kafka/docker/run"],
        "node": [advertised, f"exec {confluent}/run"],
        "go": [
            f"source {confluent}/bash-config",
            advertised,
            f"sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' {confluent}/configure",
            f"echo 'kafka-storage format -t x -c /etc/kafka/kafka.properties' >> {confluent}/configure",
            f"echo '' > {confluent}/ensure",
            f"{confluent}/configure",
            f"exec {confluent}/launch",
        ],
    }[module]
    script = tmp_path / "start.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    variables = {
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},BROKER://127.0.0.1:{inside},CONTROLLER://127.0.0.1:0",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
        "KBROKER_CONTROL_LISTEN": "127.0.0.1:0",
        "KBROKER_CONTROL_PUBLIC": "true",
        "KBROKER_CONSOLE_LISTEN": "127.0.0.1:0",
        "KBROKER_CONSOLE_PUBLIC": "true",
    }
    with running(["bash", str(script)], ready, **variables):
        told = json.loads(ready.read_text())
        assert f"127.0.0.1:{port}" in told["bootstrap_servers"].split(",")
        CommandLine(f"127.0.0.1:{port}").ok("produce", "t", stdin=b"x\n")
        request = urllib.request.Request(f"{told['control']}/topics/t/records", headers={"Host": "kbroker:9690"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert json.loads(answer.read())["records"][0]["value"] == {"text": "x"}
        request = urllib.request.Request(f"{told['console']}/topics", headers={"Host": "kbroker:8080"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert "<h1>Topics</h1>" in answer.read().decode()


def test_variables_make_the_log(tmp_path):
    command, ready = container(tmp_path)
    address = f"PLAINTEXT://127.0.0.1:{free_port()}"
    levels = "kafka.controller=WARN,kafka.network.Processor=TRACE"
    variables = {"KBROKER_LOG_FORMAT": "json", "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO", "KAFKA_LOG4J_LOGGERS": levels}
    with running(command, ready, KAFKA_LISTENERS=address, KAFKA_JMX_PORT="9", **variables) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
    records = [json.loads(line) for line in out.decode().splitlines()]
    messages = [each["message"] for each in records]
    assert messages[:2] == [
        "KAFKA_LOG4J_LOGGERS: kafka.network.Processor=TRACE has no effect",
        "KAFKA_JMX_PORT is for a JVM and has no effect",
    ]
    assert "Kafka Server started" in messages
    assert not any("LOG4J_ROOT" in each for each in messages)
    assert not any(each["logger"].startswith("kbroker.controller") and each["level"] == "INFO" for each in records)


@pytest.mark.parametrize("what", ["CONTROL", "CONSOLE"])
def test_what_can_do_everything_is_public_by_a_variable_alone(refused, tmp_path, what):
    listen = {f"KBROKER_{what}_LISTEN": "0.0.0.0:0"}
    said = refused("container", "--config", str(tmp_path / "server.properties"), **listen)
    assert f"KBROKER_{what}_PUBLIC" in said


def test_the_images_command(image):
    directory, ready = image
    with running([str(directory / "kafka/docker/run")], ready, KAFKA_LISTENERS="PLAINTEXT://127.0.0.1:0") as process:
        assert json.loads(ready.read_text())["pid"] == process.pid  # signals reach the broker itself


@pytest.mark.long
@pytest.mark.parametrize("kraft", [True, False])
def test_the_start_script_of_testcontainers_for_python(image, tmp_path, kraft):
    directory, ready = image
    port, inside = free_port(), free_port()
    confluent = directory / "confluent/docker"
    boot = (
        f"""
        sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' {confluent}/configure
        echo 'kafka-storage format --ignore-formatted -t abc== -c /etc/kafka/kafka.properties' >> {confluent}/configure
        """
        if kraft
        else "export KAFKA_ZOOKEEPER_CONNECT='localhost:2181'"
    )
    script = tmp_path / "tc-start.sh"
    script.write_text(
        f"""#!/bin/bash
        {boot}
        export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{port},BROKER://127.0.0.1:{inside}
        . {confluent}/bash-config
        {confluent}/configure
        {confluent}/launch
        """
    )
    variables = {
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},BROKER://127.0.0.1:{inside}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_BROKER_ID": "1",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    if kraft:
        variables |= {
            "CLUSTER_ID": "q83vEjRWeJCrze8SNFZ4kA==",
            "KAFKA_NODE_ID": "1",
            "KAFKA_LISTENERS": f"{variables['KAFKA_LISTENERS']},CONTROLLER://127.0.0.1:0",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        }
    with running(["sh", str(script)], ready, **variables):
        broker = json.loads(ready.read_text())["pid"]
        try:
            cli = CommandLine(f"127.0.0.1:{port}")
            cli.ok("produce", "t", stdin=b"x\n")
            assert cli.ok("consume", "t", "--from-beginning", "--until-end").text == "x\n"
        finally:
            os.kill(broker, signal.SIGTERM)


def test_the_health_check_asks_the_broker(embedded):
    def status(port: str) -> int:
        environment = {"PATH": os.environ["PATH"], "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{port},OTHER://0.0.0.0:1"}
        return subprocess.run([DOCKER / "healthcheck"], env=environment, timeout=20, check=False).returncode

    assert status(embedded.bootstrap_servers.rpartition(":")[2]) == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        free = str(silent.getsockname()[1])
    assert status(free) == 1


def test_the_image_locks_every_dependency():
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (DOCKER / "requirements.txt").read_text(), re.M))
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
    extras = [each for name in ("control", "console", "telemetry") for each in project["optional-dependencies"][name]]
    for each in map(Requirement, [*project["dependencies"], *extras]):
        assert each.specifier.contains(locked[each.name]), each


def test_the_dockerfile_names_files_that_are_there():
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    copied = [
        source
        for line in lines
        if line.startswith("COPY") and "--from=" not in line
        for source in [word for word in line.split()[1:-1] if not word.startswith("--")]
    ]
    assert "docker/run" in copied
    for source in copied:
        assert (DOCKER.parent / source).exists(), source
    for script in [DOCKER / "run", DOCKER / "healthcheck", *(DOCKER / "confluent").iterdir()]:
        assert os.access(script, os.X_OK)
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
