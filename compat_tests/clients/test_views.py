"""A filtered view as seven clients see it: records, committed offset, lag, and fetches where nothing matches.

The last match is far from the end of the source, and further records that do not match arrive while the client waits:
that is where clients loop, or keep a lag, if a broker answers with empty batches. The readers are those of
test_delay_topics.py, and run with KBROKER_TESTS=long like there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from compat_tests.clients.test_delay_topics import (
    EVERY_READER,
    IDLE_S,
    LONG,
    MOST_FETCHES,
    Found,
    Reader,
    of_java,
)
from kbroker import Broker
from tests.figures import figure

SOURCE_RECORDS: Final = 1000
MATCHES: Final = [each for each in range(0, 740, 7) if each % 3 or each > 500]
LAST: Final = MATCHES[-1]
VIEW: Final = {"view.source": "orders", "view.filter": "header.region = 'EU'"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.topics.create("orders", 1)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "batch.num.messages": 25})
        wanted = set(MATCHES)
        for number in range(SOURCE_RECORDS):
            producer.produce("orders", f"v{number}", headers={"region": "EU" if number in wanted else "US"})
        producer.flush()
        running.topics.create("eu", 1, config=VIEW)
        yield running


@pytest.mark.parametrize("read", EVERY_READER)
def test_a_client_reads_what_matches_and_has_no_lag(broker: Broker, read: Reader, tmp_path: Path) -> None:
    idle_s = IDLE_S if read is not of_java else 3 * IDLE_S  # this also bounds the time to join the group
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(0.2):
            broker.topics["orders"].produce("other", headers=[("region", "US")])

    values = [f"v{each}" for each in MATCHES]
    others = threading.Thread(target=go_on)
    others.start()
    try:
        first = read(broker, "eu", len(values), idle_s, tmp_path)
    finally:
        stop.set()
        others.join()
    assert first.values == values
    assert LAST < first.committed <= broker.topics["orders"].records()[-1].offset + 1
    assert broker.groups["g"].lag() == 0
    fetches = broker.requests.of("Fetch", client_id="reader")
    at_end = [each for each in fetches if each.answer is not None and not _records(each.answer)]
    figure(
        f"{read.__name__}, view",
        f"{len(values)} of {SOURCE_RECORDS} records, committed {first.committed} (last match {LAST}), lag 0, "
        f"{60 * len(at_end) // idle_s} fetches a minute at the end",
    )
    assert len(at_end) <= MOST_FETCHES * idle_s // IDLE_S, "the client must wait at the end, not ask again and again"
    broker.topics["orders"].produce("v-last", headers=[("region", "EU")])
    last = broker.topics["orders"].records()[-1].offset
    assert broker.groups["g"].lag() > 0
    again = read(broker, "eu", 1, 0 if read is not of_java else idle_s, tmp_path)
    assert again == Found(["v-last"], last + 1)
    assert broker.groups["g"].lag() == 0


def _records(answer: Any) -> bool:
    return any(each.records for topic in answer.responses for each in topic.partitions)


@pytest.mark.spark
@LONG
def test_spark_reads_what_matches(broker: Broker, tmp_path: Path) -> None:
    from compat_tests.spark.session import spark

    settings = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "eu"}
    frame = spark().read.format("kafka").options(**settings).load()
    assert sorted(each.offset for each in frame.select("offset").collect()) == MATCHES
    stream = (
        spark().readStream.format("kafka").options(**settings, startingOffsets="earliest").load().select("offset")
        .writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True).start(str(tmp_path / "out"))
    )  # fmt: skip
    stream.awaitTermination(120)
    assert sorted(each.offset for each in spark().read.parquet(str(tmp_path / "out")).collect()) == MATCHES
