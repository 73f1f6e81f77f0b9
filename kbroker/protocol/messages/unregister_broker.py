"""UnregisterBroker (key 64): let a cluster on KRaft forget a broker that will not come back. Not served here."""

from kbroker.protocol.schema import f, i16, i32, message


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    broker_id: i32 = f()


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default="")
