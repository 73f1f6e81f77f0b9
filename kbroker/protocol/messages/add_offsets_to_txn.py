"""AddOffsetsToTxn (key 25): add the offsets partition of a group to a transaction (KIP-98)."""

from kbroker.protocol.schema import f, i16, i32, i64, message


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: str = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    group_id: str = f()


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
