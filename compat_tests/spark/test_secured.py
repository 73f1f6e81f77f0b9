"""Spark's own source and sink with SASL_SSL, and with certificates, through options of Kafka's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compat_tests.spark.session import spark
from kbroker import Acl, Broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.java,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC = "orders"
USERS = {"spark": 'a "secret"'}


def rights(principal: str) -> list[Acl]:
    return [Acl(allow_principal=principal, topic=TOPIC, operation=["Create", "Write", "Read"])]


def values(frame: Any) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in frame.collect())


@pytest.mark.parametrize("way", ["password", "certificate"])
def test_a_source_and_a_sink(way: str, tmp_path: Path) -> None:
    by_password = way == "password"
    arguments: dict[str, Any] = {"users": USERS} if by_password else {}
    config = {} if by_password else {"ssl.client.auth": "required"}
    acls = rights("User:spark" if by_password else "User:CN=spark")
    with Broker(config, tls=True, acls=acls, **arguments) as broker:
        client = broker.client_settings("spark") if by_password else broker.client_settings(certificate="spark")
        options = {f"kafka.{name}": value for name, value in client.java.items()}
        written = [f"value-{number}" for number in range(50)]
        frame = spark().createDataFrame([(each,) for each in written], ["value"])
        frame.write.format("kafka").options(**options).option("topic", TOPIC).save()
        source = {**options, "subscribe": TOPIC}
        assert values(spark().read.format("kafka").options(**source).load()) == sorted(written)
        reader = spark().readStream.format("kafka").options(**source).option("startingOffsets", "earliest").load()
        query = (
            reader.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert values(spark().read.parquet(str(tmp_path / "out"))) == sorted(written)
