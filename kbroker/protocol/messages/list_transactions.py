"""ListTransactions (key 66): the transactional ids that a broker coordinates (KIP-664)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: list[str] = f()
    producer_id_filters: list[i64] = f()
    duration_filter: i64 = f("1+", default=-1)
    transactional_id_pattern: str | None = f("2+", nullable="2+", default=None)


@struct
class TransactionState:
    transactional_id: str = f()
    producer_id: i64 = f()
    transaction_state: str = f()


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    unknown_state_filters: list[str] = f()
    transaction_states: list[TransactionState] = f()
