"""InitProducerId (key 22): obtain a producer id and epoch (KIP-98, KIP-360)."""

from kbroker.protocol.schema import f, i16, i32, i64, message


@message(key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = f(nullable="0+")
    transaction_timeout_ms: i32 = f()
    producer_id: i64 = f("3+", default=-1)
    producer_epoch: i16 = f("3+", default=-1)
    enable2_pc: bool = f("6+", default=False)
    keep_prepared_txn: bool = f("6+", default=False)


@message(key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    producer_id: i64 = f(default=-1)
    producer_epoch: i16 = f()
    ongoing_txn_producer_id: i64 = f("6+", default=-1)
    ongoing_txn_producer_epoch: i16 = f("6+", default=-1)
