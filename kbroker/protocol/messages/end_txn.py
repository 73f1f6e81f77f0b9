"""EndTxn (key 26): commit or abort a transaction (KIP-98, KIP-890)."""

from kbroker.protocol.schema import f, i16, i32, i64, message


@message(key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: str = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    committed: bool = f()


@message(key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    producer_id: i64 = f("5+", default=-1)
    producer_epoch: i16 = f("5+", default=-1)
