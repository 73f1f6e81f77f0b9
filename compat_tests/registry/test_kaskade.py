"""Kaskade, a Kafka console for the terminal, shows records of three formats with kbroker's registry.

pip installs it into its own environment, which takes a minute: only with KBROKER_TESTS=long.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.wrappers_pb2 import Int64Value

from kbroker import Broker
from tests.tries import FORM

pytestmark = pytest.mark.skipif(FORM != "long", reason="installs Kaskade: only with KBROKER_TESTS=long")
VERSION: Final = "5.1.0"
WAIT_S: Final = 60
AVRO: Final = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
JSON: Final = '{"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}'


@pytest.fixture(scope="module")
def kaskade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kaskade")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=120)
    wanted = [str(directory / "bin" / "pip"), "install", "--quiet", f"kaskade=={VERSION}"]
    subprocess.run(wanted, check=True, timeout=600)
    return directory / "bin" / "kaskade"


def shows(command: Sequence[str | Path], *texts: str) -> None:
    """Run a program in a terminal until it has drawn these texts; then kill it."""
    terminal, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(its)
        drawn, end = "", time.monotonic() + WAIT_S
        try:
            while not all(text in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn) for text in texts):
                assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], drawn[-3000:]
                drawn += os.read(terminal, 65536).decode(errors="replace")
        finally:
            process.kill()
            os.close(terminal)


def test_records_of_three_formats(kaskade: Path) -> None:
    with Broker(registry=True) as broker:
        registry = SchemaRegistryClient({"url": broker.registry_url})
        protobuf = ProtobufSerializer(Int64Value, registry, {"use.deprecated.format": False})
        for topic, to_bytes, value, shown in (
            ("avro", AvroSerializer(registry, AVRO), {"id": 7001}, "{'id': 7001}"),
            ("json", JSONSerializer(JSON, registry), {"id": 7002}, "{'id': 7002}"),
            ("protobuf", protobuf, Int64Value(value=7003), "{'value': '7003'}"),
        ):
            field = SerializationContext(topic, MessageField.VALUE)
            broker.topics.create(topic).produce(to_bytes(value, field), key="the-key")
            where = ("-b", broker.bootstrap_servers, "-t", topic, "--earliest", "-k", "string")
            values = ("-v", "registry", "--registry", f"url={broker.registry_url}")
            shows([kaskade, "consumer", *where, *values], "the-key", shown)
        shows([kaskade, "admin", "-b", broker.bootstrap_servers], "_schemas", "avro", "json", "protobuf")
