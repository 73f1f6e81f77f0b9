"""Confluent's Java client of a schema registry, as Apache Flink packs it (7.5.3), and messages from and for Java.

Confluent's own artifacts are not in the repository that Maven uses; Flink's jar contains the client under another
package. It is fetched with Maven: only with KBROKER_TESTS=long.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from compat_tests.harness.parts import fetch
from kbroker import Broker
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="fetches Flink's format: only with KBROKER_TESTS=long"),
]
SOURCE: Final = Path(__file__).with_name("clients") / "java" / "Registry.java"
FIRST: Final = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
FIELD: Final = SerializationContext("orders", MessageField.VALUE)
CHECKED: Final = {"confluent.value.schema.validation": "true", "kbroker.schema.validation.level": "parse"}


def test_confluents_java_client() -> None:
    with Broker(registry=True, registry_auth=True, users={"alice": "secret"}) as broker:
        orders = broker.topics.create("orders", config=CHECKED)
        url = str(broker.registry_url)
        registry = SchemaRegistryClient({"url": url, "basic.auth.user.info": "alice:secret"})
        to_bytes = AvroSerializer(registry, FIRST)
        own = [to_bytes({"id": number}, FIELD) for number in range(1000, 1100)]
        done = subprocess.run(
            ["java", "-cp", f"{fetch('flink-registry')}/*", str(SOURCE), url, "alice:secret"],
            input="".join(f"{each.hex()}\n" for each in own if each is not None),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        lines = done.stdout.splitlines()
        assert [each for each in lines if each.startswith("ok")] == [
            f"ok {name}" for name in ("versions", "levels", "references", "deletions", "logins")
        ]
        assert [each for each in lines if each.startswith("read")] == [f"read {each}" for each in range(1000, 1100)]
        theirs = [bytes.fromhex(each) for each in lines if not each.startswith(("ok", "read"))]
        for each in theirs:
            orders.produce(each)
        from_bytes = AvroDeserializer(registry)
        assert [from_bytes(each, FIELD) for each in orders.values()] == [{"id": number} for number in range(100)]
