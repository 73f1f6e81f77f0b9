"""A schedule topic whose values are checked against the registry, too: both checks judge each batch."""

from __future__ import annotations

from compat_tests.wire.client import WireClient
from kbroker.protocol.errors import ErrorCode
from tests.record_checks.conftest import Shop, order
from tests.schedules.test_produce import errors, produce, record

SCHEDULED = {"schedule_enable": "true", "message_timestamp_type": "LogAppendTime", "schedule_target_topic": "target"}


def test_both_checks_judge_a_batch(shop: Shop) -> None:
    shop.topic("target")
    shop.checked("later", **SCHEDULED)
    good = order(shop.register("later-value"))
    with WireClient(shop.broker.bootstrap_servers) as wire:
        assert produce(wire, "later", record(good, x_delay="60000"), record(None)).error_code == ErrorCode.NONE
        without_schema = produce(wire, "later", record(good, x_delay="60000"), record(b"x", x_delay="60000"))
        assert [index for index, _ in errors(without_schema)] == [1]
        without_time = produce(wire, "later", record(good), record(b"x", x_delay="60000"))
        assert errors(without_time) == [
            (0, "no time: a record of a schedule topic needs one of x-deliver-at, x-deliver-after, x-schedule")
        ]


def test_a_bad_schedule_leaves_no_dead_letter(shop: Shop) -> None:
    shop.topic("target")
    shop.topic("letters")
    shop.checked("later", kbroker_schema_validation_deadletter_topic="letters", **SCHEDULED)
    good = order(shop.register("later-value"))
    with WireClient(shop.broker.bootstrap_servers) as wire:
        bad = produce(wire, "later", record(b"x", x_delay="60000"), record(good, x_delay="soon"))
        assert bad.error_code == ErrorCode.INVALID_RECORD
        assert shop.values("letters") == []
        moved = produce(wire, "later", record(b"x", x_delay="60000"), record(good, x_delay="60000"))
        assert moved.error_code == ErrorCode.NONE
        assert shop.values("letters") == [b"x"]
