"""The configs of topics, brokers, loggers, groups and client metrics: reading and setting them.

Owns the kinds of entities that have configs. Distinguishes values that were set on the entity itself from inherited
values. Never prints.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kafka.errors import IncompatibleBrokerVersion

from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.own_request import ask_any, ask_broker
from kbroker.admin.visible_everywhere import wait_for_configs
from kbroker.config.model import ConfigSource
from kbroker.config.operations import Op
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_T = TypeVar("_T")
_LONGEST: Final = 32_767
"""The maximum size in bytes of a value in a request."""
TYPES: Final = {"topic": 2, "broker": 4, "logger": 8, "client-metrics": 16, "group": 32}
"""The kinds of config resources, with Kafka's numbers (ConfigResource.Type)."""
_NAMES: Final = {number: name for name, number in TYPES.items()}
_OWN: Final = {
    "topic": ConfigSource.DYNAMIC_TOPIC_CONFIG,
    "broker": ConfigSource.DYNAMIC_BROKER_CONFIG,
    "client-metrics": ConfigSource.CLIENT_METRICS_CONFIG,
    "group": ConfigSource.GROUP_CONFIG,
}
"""The source of a value that was set on the entity itself; a logger's value always counts as set."""
_WITH_TYPES: Final = 1
"""The first ListConfigResources version that lists types other than client metrics."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An entity with configs; a broker with an empty name stands for the default of all brokers."""

    kind: str
    name: str

    def __str__(self) -> str:
        if self.kind == "logger":
            return f"loggers of broker {self.name}"
        return f"{self.kind} {self.name}" if self.name else "all brokers"

    def is_of(self, source: int) -> bool:
        """Return whether a value of this source was set on the entity itself, and not inherited."""
        if not self.name:
            return source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return source == _OWN.get(self.kind, source)

    @property
    def node(self) -> int | None:
        """The broker that must receive the request; None for any broker."""
        if self.kind not in ("broker", "logger") or not self.name:
            return None
        return int(self.name)


def listed_subjects(admin: Any, kinds: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return type and name of the entities with configs, of the given types or of all. Raises AdminError."""
    request = ListConfigResourcesRequest([TYPES[kind] for kind in kinds])
    at_least = 0 if list(kinds) == ["client-metrics"] else _WITH_TYPES
    answer = ask_any(admin, request, ListConfigResourcesResponse, at_least)
    if answer is None:
        raise AdminError("this broker does not list resources with configs (Apache Kafka does since 4.1)")
    check_code(answer.error_code, "cannot list the resources with configs")
    return sorted((_NAMES.get(each.resource_type, "other"), each.resource_name) for each in answer.config_resources)


def described_configs(admin: Any, subject: Subject, *, documentation: bool) -> list[DescribeConfigsResourceResult]:
    """Return all configs of a subject, each with its source. Raises AdminError."""
    resource = DescribeConfigsResource(TYPES[subject.kind], subject.name, None)
    request = DescribeConfigsRequest([resource], include_synonyms=False, include_documentation=documentation)
    (result,) = _request(admin, subject, request, DescribeConfigsResponse).results
    check_code(result.error_code, f"cannot describe {subject}", result.error_message)
    return result.configs


def topic_config(admin: Any, names: Sequence[str], key: str) -> dict[str, str]:
    """Return the value of one config of several topics; topics whose config cannot be read are left out."""
    resources = [DescribeConfigsResource(TYPES["topic"], name, [key]) for name in names]
    answer = ask_any(admin, DescribeConfigsRequest(resources), DescribeConfigsResponse)
    assert answer is not None  # every broker of the last ten years serves this API
    return {
        result.resource_name: each.value
        for result in answer.results
        if not result.error_code
        for each in result.configs
        if each.name == key and each.value is not None
    }


def check_size(key: str, value: str | None) -> None:
    """Raise AdminError for a value that is too long for Kafka's STRING; brokers would close the connection."""
    size = len((value or "").encode())
    if size > _LONGEST:
        raise AdminError(f"the value of {key} has {size} bytes, and a request can carry {_LONGEST}")


def alter_configs(admin: Any, subject: Subject, ops: Sequence[IncrementalConfig], *, dry_run: bool) -> None:
    """Set and unset configs, all of them or none, and wait until they are readable. Raises AdminError."""
    for op in ops:
        check_size(op.name, op.value)
    resource = IncrementalResource(TYPES[subject.kind], subject.name, list(ops))
    request = IncrementalAlterConfigsRequest([resource], dry_run)
    (result,) = _request(admin, subject, request, IncrementalAlterConfigsResponse).responses
    if not result.error_code:
        if not dry_run:
            wait_for_configs(lambda: _are_visible(admin, subject, ops))
        return
    known = [each.name for each in described_configs(admin, subject, documentation=False)]
    unknown = [op.name for op in ops if op.name not in known]
    near = _near(unknown[0], known) if unknown else ""
    check_code(result.error_code, f"cannot change {subject}", result.error_message, near)


def _are_visible(admin: Any, subject: Subject, ops: Sequence[IncrementalConfig]) -> bool:
    known = {each.name: each for each in described_configs(admin, subject, documentation=False)}
    return all(op.name not in known or _is_visible(subject, op, known[op.name]) for op in ops)


def _is_visible(subject: Subject, op: IncrementalConfig, known: DescribeConfigsResourceResult) -> bool:
    if op.config_operation == Op.DELETE:
        return subject.kind == "logger" or not subject.is_of(known.config_source)
    return known.is_sensitive or known.value == op.value


def _request(admin: Any, subject: Subject, request: Any, answer: type[_T]) -> _T:
    if subject.node is None:
        found = ask_any(admin, request, answer)
        assert found is not None  # every broker of the last ten years serves this API
        return found
    try:
        return ask_broker(admin, subject.node, request, answer)
    except IncompatibleBrokerVersion:
        raise AdminError(f"broker {subject.node} does not serve this") from None


def no_such_config(subject: Subject, key: str, known: Sequence[str]) -> str:
    """Return the message for a key that a subject does not have."""
    return f"{subject} has no config {key}{_near(key, known)}"


def _near(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def source_name(each: DescribeConfigsResourceResult) -> str:
    """Return Kafka's name of a value's source."""
    try:
        return ConfigSource(each.config_source).name
    except ValueError:  # a source that only a newer Kafka has
        return str(each.config_source)
