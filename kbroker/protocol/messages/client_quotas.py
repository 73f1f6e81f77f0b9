"""Quotas of clients (KIP-546)."""

from kbroker.protocol.schema import f, f64, i8, i16, i32, message, struct

# DescribeClientQuotas (key 48): the quotas of users, client ids and addresses (KIP-546).


@struct
class ComponentData:
    entity_type: str = f()
    match_type: i8 = f()
    match: str | None = f(nullable="0+")


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    components: list[ComponentData] = f()
    strict: bool = f()


@struct
class EntityData:
    entity_type: str = f()
    entity_name: str | None = f(nullable="0+")


@struct
class ValueData:
    key: str = f()
    value: f64 = f()


@struct
class EntryData:
    entity: list[EntityData] = f()
    values: list[ValueData] = f()


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    entries: list[EntryData] | None = f(nullable="0+")


# AlterClientQuotas (key 49): set and remove quotas of users, client ids and addresses (KIP-546).


@struct
class AlteredEntity:
    entity_type: str = f()
    entity_name: str | None = f(nullable="0+")


@struct
class OpData:
    key: str = f()
    value: f64 = f()
    remove: bool = f()


@struct
class AlteredEntry:
    entity: list[AlteredEntity] = f()
    ops: list[OpData] = f()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: list[AlteredEntry] = f()
    validate_only: bool = f()


@struct
class AlteredEntryData:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    entity: list[AlteredEntity] = f()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: i32 = f()
    entries: list[AlteredEntryData] = f()
