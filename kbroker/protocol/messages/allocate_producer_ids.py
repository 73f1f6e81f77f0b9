"""AllocateProducerIds (key 67): a broker asks the controller for a block of producer ids (KIP-730)."""

from kbroker.protocol.schema import f, i16, i32, i64, message


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest:
    broker_id: i32 = f()
    broker_epoch: i64 = f(default=-1)


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    producer_id_start: i64 = f()
    producer_id_len: i32 = f()
