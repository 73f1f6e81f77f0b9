"""The log of a broker's process: each record is one line, whoever chose the names in it, and contains no secret."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.cli.container import image_levels
from kbroker.cli.log_output import TextLines, _json_lines, log_options, name_broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

TEXT_LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] [A-Z]+ .* \([\w.]+\)")
FORGED = "x (kbroker)\n[2026-01-01 00:00:00,000] ERROR forged (kbroker)\r\x1b[2J\u2028\u0085\x00"
NAME = "alice (kbroker)\u2028forged\u202e\u0085"
FIELDS = "time", "level", "logger", "message", "broker_id"


class Written:
    """The output of a handler of the root logger in one of the two formats."""

    def __init__(self, log_format: str) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(_json_lines() if log_format == "json" else TextLines())

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.removesuffix("\n").split("\n")

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture(params=["text", "json"])
def written(request: pytest.FixtureRequest) -> Iterator[Written]:
    """Collect everything that is logged, from DEBUG on."""
    made = Written(request.param)
    root, client = logging.getLogger(), logging.getLogger("kafka")
    levels = root.level, client.level
    root.addHandler(made.handler)
    root.setLevel(logging.DEBUG)
    client.setLevel(logging.NOTSET)  # the verbs silence kafka-python, and all loggers below that name
    yield made
    root.removeHandler(made.handler)
    root.setLevel(levels[0])
    client.setLevel(levels[1])


def of_this_thread(record: logging.LogRecord) -> bool:
    """Clients that other tests left behind log in their own threads."""
    return record.thread == threading.get_ident()


@pytest.fixture
def as_json() -> Iterator[Written]:
    made = Written("json")
    made.handler.addFilter(of_this_thread)
    logging.getLogger().addHandler(made.handler)
    yield made
    logging.getLogger().removeHandler(made.handler)


def all_are_records(written: Written, log_format: str) -> None:
    for line in written.lines:
        assert line.isprintable() or log_format == "json", line
        if log_format == "json":
            assert line.isascii()
            assert line.isprintable()
            assert tuple(json.loads(line))[: len(FIELDS)] == FIELDS
        else:
            assert TEXT_LINE.fullmatch(line), line
            assert not line.startswith("[2026-01-01 00:00:00,000]")


def test_a_record_as_json(as_json: Written) -> None:
    name_broker(7)
    before = datetime.now(UTC)
    extra = {"api": "Fetch", "time": "never", "level": "never", "broker_id": -1}
    logging.getLogger("kbroker.some.where").warning("%d things, %r", 3, "ä", extra=extra)
    [record] = as_json.records
    assert {**record, "time": ""} == {
        "time": "",
        "level": "WARNING",
        "logger": "kbroker.some.where",
        "message": "3 things, 'ä'",
        "broker_id": 7,
        "api": "Fetch",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert abs((datetime.fromisoformat(record["time"]) - before).total_seconds()) < 60


def test_no_broker_is_named_before_its_id_is_known(as_json: Written) -> None:
    logging.getLogger("kbroker").warning("early")
    assert as_json.records[0]["broker_id"] is None


def fail() -> None:
    raise ValueError(f"of {FORGED}")


def test_an_exception_is_one_field(as_json: Written) -> None:
    try:
        fail()
    except ValueError:
        logging.getLogger("kbroker").exception("it failed", stack_info=True)
    [record] = as_json.records
    assert record["message"] == "it failed"
    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert record["exception"].endswith(f"ValueError: of {FORGED}")
    assert record["stack"].startswith("Stack (most recent call last):\n")
    assert "exc_info" not in record
    assert len(as_json.lines) == 1


def test_an_exception_as_text_is_no_other_record() -> None:
    written = Written("text")
    try:
        fail()
    except ValueError:
        written.handler.handle(logging.LogRecord("kbroker", logging.ERROR, "", 0, "it failed", (), sys.exc_info()))
    first, *others = written.lines
    assert TEXT_LINE.fullmatch(first)
    assert len(others) > 3
    for line in others:
        assert line.startswith("\t")
        assert line[1:].isprintable()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("name", [FORGED, "\ud800", "\u202e right to left", "ä ok", "\x7f"])
def test_whatever_is_logged_is_one_line(name: str, log_format: str) -> None:
    # The handler belongs to no logger: pytest could not report a log text with half a surrogate pair, and brokers of
    # other tests log, too.
    written = Written(log_format)
    written.handler.handle(logging.LogRecord("kbroker", logging.ERROR, "", 0, "group %s: %r", (name, name), None))
    assert len(written.lines) == 1
    all_are_records(written, log_format)


def test_clients_write_no_lines_of_their_own(written: Written, request: pytest.FixtureRequest) -> None:
    """Not with a topic, client id, group id, member id or protocol."""
    with Broker() as broker, WireClient(broker.bootstrap_servers, client_id=FORGED) as client:
        client.ask(CreateTopicsRequest(topics=[CreatableTopic(FORGED, 1, 1)], timeout_ms=5000), 4)
        client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=FORGED)]), 9)
        join = JoinGroupRequest(FORGED, 10_000, 10_000, group_instance_id=FORGED, protocol_type=FORGED, reason=FORGED)
        join.protocols = [JoinGroupRequestProtocol(FORGED, bytes(10))]
        client.ask(join, 9)
        join.member_id = FORGED
        client.ask(join, 9)
        client.send_bytes(b"\0\0\0\1\n")
        client.receive()
    assert "forged" in written.text
    all_are_records(written, request.node.callspec.params["written"])


PASSWORD, WRONG, NEW = "hunter2-of-the-user", "guessed-by-somebody", "a-new-one-for-alice"


def test_a_principal_writes_no_lines_and_no_secret_is_told(written: Written, request: pytest.FixtureRequest) -> None:
    """Not even at DEBUG, for requests that contain a secret: logins, users' new passwords, configs, records."""
    with Broker(users={NAME: PASSWORD}, acls=[]) as broker:
        answer, client = log_in(broker, WRONG)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        client.close()
        answer, client = log_in(broker, PASSWORD)
        assert answer.error_code == 0
        salted = hashlib.pbkdf2_hmac("sha256", NEW.encode(), b"salt", 4096)
        upsertion = ScramCredentialUpsertion("alice", 1, 4096, b"salt", salted)
        config = IncrementalResource(4, "1", [IncrementalConfig("ssl.keystore.password", 0, NEW)])
        client.ask(AlterUserScramCredentialsRequest([], [upsertion]), 0)
        client.ask(IncrementalAlterConfigsRequest(resources=[config]), 1)
        client.ask(produce_request("t", batch(1, key=NEW.encode())), 9)
        client.close()
    log_format = request.node.callspec.params["written"]
    all_are_records(written, log_format)
    for secret in (PASSWORD, WRONG, NEW, salted.hex(), repr(salted), base64.b64encode(salted).decode()):
        assert secret not in written.text
    for told in ("forged", "is Denied operation", "Completed request: AlterUserScramCredentials"):
        assert told in written.text
    if log_format == "json":
        [told_of] = [each for each in written.records if each.get("api") == "AlterUserScramCredentials"]
        assert "\\u2028forged" in told_of["principal"]
        assert (told_of["logger"], told_of["level"]) == ("kafka.request.logger", "DEBUG")
        assert told_of["request_bytes"] > 32


def log_in(broker: Broker, password: str) -> tuple[Any, WireClient]:
    client = WireClient(broker.bootstrap_servers)
    assert client.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    return client.ask(SaslAuthenticateRequest(f"\0{NAME}\0{password}".encode()), 2), client


# --- the options


def options(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, Any]:
    taken: list[Any] = []

    @click.command
    @log_options(in_container=True)
    def command(log_format: str, log_levels: tuple[str, ...]) -> None:
        taken.append((log_format, log_levels))

    done = CliRunner().invoke(command, arguments, env=environment)
    return done.exit_code, taken[0] if taken else done.output


def test_options() -> None:
    assert options() == (0, ("text", ()))
    given = ["--log-level", "warn", "--log-level=kafka.request.logger=DEBUG", "--log-format", "json"]
    assert options(*given) == (0, ("json", ("warn", "kafka.request.logger=DEBUG")))
    variables = {"KBROKER_LOG_FORMAT": "json", "KBROKER_LOG_LEVEL": "WARN kafka.controller=DEBUG"}
    assert options(environment=variables) == (0, ("json", ("WARN", "kafka.controller=DEBUG")))


@pytest.mark.parametrize("level", ["LOUD", "kafka.nothing=INFO", "kafka.request.logger=LOUD", "="])
def test_a_wrong_level_is_told(level: str) -> None:
    code, output = options("--log-level", level)
    assert code == 2
    assert "is none of DEBUG, ERROR, FATAL, INFO, TRACE, WARN" in output or "there is no logger" in output


def test_the_images_variables() -> None:
    variables = {
        "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
        "KAFKA_LOG4J_LOGGERS": "kafka.controller=TRACE, kafka.request.logger=debug,kafka.network.X=INFO,kafka=OFF,",
    }
    levels, unknown = image_levels(variables)
    assert [each.strip() for each in levels] == ["WARN", "kafka.controller=TRACE", "kafka.request.logger=debug"]
    assert unknown == ["KAFKA_LOG4J_LOGGERS: kafka.network.X=INFO", "KAFKA_LOG4J_LOGGERS: kafka=OFF"]
    assert image_levels({}) == ([], [])


# --- whole processes


def test_a_broker_writes_json(tmp_path: Path) -> None:
    ready, told = tmp_path / "ready", tmp_path / "log"
    arguments = ["--memory", "--listen", "127.0.0.1:0", "--set", "broker.id=3", "--ready-file", str(ready)]
    levels = [
        "--log-level",
        "ERROR",
        "--log-level",
        "kbroker.network.server=INFO",
        "--log-level=kafka.request.logger=debug",
    ]
    command = [sys.executable, "-m", "kbroker", "start", *arguments, "--log-format", "json", *levels]
    with told.open("wb") as log, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as process:
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            with WireClient(json.loads(ready.read_text())["bootstrap_servers"], client_id=FORGED) as client:
                client.ask(MetadataRequest(topics=[]), 9)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    records = [json.loads(line) for line in told.read_text().splitlines()]
    assert {each["broker_id"] for each in records} == {3}
    assert [each["logger"] for each in records] == ["kbroker.network.server", "kafka.request.logger"]
    assert (records[1]["api"], records[1]["client_id"]) == ("Metadata", FORGED.encode("unicode_escape").decode())
