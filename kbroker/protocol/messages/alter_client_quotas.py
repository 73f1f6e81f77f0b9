"""AlterClientQuotas (key 49): set and remove quotas of users, client ids and addresses (KIP-546)."""

from kbroker.protocol.schema import f, f64, i16, i32, message, struct


@struct
class EntityData:
    entity_type: str = f()
    entity_name: str | None = f(nullable="0+")


@struct
class OpData:
    key: str = f()
    value: f64 = f()
    remove: bool = f()


@struct
class EntryData:
    entity: list[EntityData] = f()
    ops: list[OpData] = f()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: list[EntryData] = f()
    validate_only: bool = f()


@struct
class AlteredEntryData:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    entity: list[EntityData] = f()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: i32 = f()
    entries: list[AlteredEntryData] = f()
