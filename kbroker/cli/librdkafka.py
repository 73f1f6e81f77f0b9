"""A connection's settings for librdkafka, the core of confluent-kafka.

Owns the translation of kafka-python's names. A setting that librdkafka does not have is refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from kbroker.admin.connection import Connection

_SAME: Final = frozenset(
    {
        "acks",
        "auto_offset_reset",
        "batch_size",
        "client_id",
        "client_rack",
        "compression_type",
        "delivery_timeout_ms",
        "enable_idempotence",
        "fetch_max_bytes",
        "fetch_min_bytes",
        "group_id",
        "isolation_level",
        "linger_ms",
        "max_partition_fetch_bytes",
        "max_poll_interval_ms",
        "metadata_max_age_ms",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "request_timeout_ms",
        "retries",
        "retry_backoff_ms",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "security_protocol",
        "session_timeout_ms",
        "transactional_id",
    }
)
"""Settings whose names in librdkafka differ only by having dots instead of underscores."""
_OTHERS: Final[Mapping[str, str]] = {
    "check_crcs": "check.crcs",
    "connections_max_idle_ms": "connections.max.idle.ms",
    "fetch_max_wait_ms": "fetch.wait.max.ms",
    "max_in_flight_requests_per_connection": "max.in.flight.requests.per.connection",
    "max_request_size": "message.max.bytes",
    "partition_assignment_strategy": "partition.assignment.strategy",
    "receive_buffer_bytes": "socket.receive.buffer.bytes",
    "sasl_plain_password": "sasl.password",
    "sasl_plain_username": "sasl.username",
    "send_buffer_bytes": "socket.send.buffer.bytes",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_ciphers": "ssl.cipher.suites",
    "ssl_crlfile": "ssl.crl.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
_TURNED: Final[Mapping[str, Callable[[Any], tuple[str, Any]]]] = {
    "ssl_check_hostname": lambda checked: ("ssl.endpoint.identification.algorithm", "https" if checked else "none"),
}
_WITHOUT_MEANING: Final = frozenset({"bootstrap_timeout_ms", "api_version", "max_block_ms"})
"""Settings that only kafka-python has. They affect only its search for a broker at the start.

This search is not measured.
"""


def settings_of(
    connection: Connection, own: Mapping[str, Any], others: Mapping[str, Any], otherwise: str = ""
) -> dict[str, Any]:
    """Return librdkafka's settings for a connection.

    `own` uses kafka-python's names, and -X settings override it; `others` uses librdkafka's names. The message about a
    refused setting ends with `otherwise`.
    """
    found: dict[str, Any] = {
        "bootstrap.servers": connection.bootstrap,
        "client.id": "kbroker-perf",
        "log_level": 0,
        "enable.metrics.push": False,
        **others,
    }
    for name, value in {**own, **connection.settings}.items():
        if name in _SAME:
            found[name.replace("_", ".")] = value
        elif name in _OTHERS:
            found[_OTHERS[name]] = value
        elif name in _TURNED:
            other, turned = _TURNED[name](value)
            found[other] = turned
        elif name not in _WITHOUT_MEANING:
            raise click.UsageError(f"-X {name} has no meaning for confluent-kafka{otherwise}")
    return found
