"""A short test of bombs on every path on which a batch is opened, against a broker process.

All shapes in full size on all paths take minutes: `python -m tests.fair.bombs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from compat_tests.harness.brokers import KBroker
from kbroker.protocol.compression import GZIP, LZ4, SNAPPY, ZSTD
from kbroker.protocol.errors import ErrorCode
from tests.fair.bombs import WAYS, Quiet, Shape, create_topics, for_way, send, shapes, together
from tests.figures import figure
from tests.log import bombs

pytestmark = pytest.mark.long

HANGS_SECONDS = 5.0
GROWTH_BYTES = 100 << 20
SHAPES = {shape.name: shape for shape in shapes()}
CODES = {
    "timestamps ahead": ErrorCode.INVALID_TIMESTAMP,
    "compacted": ErrorCode.INVALID_RECORD,
    "full validation": ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The answers to 100,000 identical records without keys, where they are refused or must be put in order."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KBroker]:
    with KBroker(tmp_path_factory.mktemp("bombs"), {}) as process:
        create_topics(process)
        yield process
        assert process.running
    log = process.log_file.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") :][:4000]


@pytest.mark.parametrize("way", WAYS)
def test_a_quiet_client_is_served_beside_them(broker: KBroker, way: str) -> None:
    with Quiet(broker) as quiet:
        for codec in (GZIP, SNAPPY, LZ4, ZSTD):
            batch = for_way(way, Shape("100,000 records", partial(bombs.minimal, 100_000, codec)))
            assert send(broker, way, batch, codec) == CODES.get(way, ErrorCode.NONE)
        for name in ("a value of 95 MB, zstd", "a zstd window of 128 MB", "a snappy block that claims 4 GB"):
            send(broker, way, for_way(way, SHAPES[name]), 5)
    figure(f"bombs, {way}", f"longest wait {quiet.longest * 1000:.0f} ms, +{quiet.grown >> 20} MB")
    assert quiet.longest < HANGS_SECONDS
    assert quiet.grown < GROWTH_BYTES


def test_many_at_once_take_memory_for_a_few(broker: KBroker) -> None:
    batch = for_way("timestamps ahead", SHAPES["a zstd window of 128 MB"])
    with Quiet(broker) as quiet:
        codes = together(broker, "timestamps ahead", batch, 40)
    assert codes == [ErrorCode.INVALID_RECORD] * 40
    figure("40 zstd windows of 128 MB at once", f"+{quiet.grown >> 20} MB")
    assert quiet.grown < GROWTH_BYTES
