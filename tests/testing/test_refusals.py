"""A refusal of any API in any version can be sent, and has the error somewhere a client looks."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker import handlers
from kbroker.handlers.registry import Api, served
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Scalar
from kbroker.testing.refusals import refusal

handlers.load_all()
SERVED = sorted(served(in_cluster=False).values(), key=lambda api: api.key)
_FIRST_WITH_PLACE = {"Fetch": 7}
"""Before fetch sessions there were no errors but those of partitions, which a fault puts there by itself."""
CODE = ErrorCode.KAFKA_STORAGE_ERROR


def example(kind: Any) -> Any:
    """Return a struct with one element in every list, and something in every field that has to name what fails."""
    values: dict[str, Any] = {}
    for spec in kind.SPECS:
        if spec.name == "acks":
            values[spec.name] = 1  # what is not to be acknowledged is not answered either
        elif spec.array:
            values[spec.name] = (
                ["x" if spec.kind.name == "string" else 1] if isinstance(spec.kind, Scalar) else [example(spec.kind)]
            )
        elif isinstance(spec.kind, Scalar) and spec.kind.name == "string":
            values[spec.name] = "x"
        elif isinstance(spec.kind, Scalar) and spec.kind.name == "records":
            values[spec.name] = b""
    return kind(**values)


def codes(struct: Any) -> set[int]:
    """Return the error codes anywhere in an answer."""
    found = set()
    for spec in type(struct).SPECS:
        value = getattr(struct, spec.name)
        if spec.name in ("error_code", "partition_error_code"):
            found.add(value)
        elif not isinstance(spec.kind, Scalar) and value is not None:
            for each in value if spec.array else [value]:
                found |= codes(each)
    return found


def test_unstable_offsets_are_told_by_partition() -> None:
    api = next(each for each in SERVED if each.name == "OffsetFetch")
    for version in range(api.versions.low, api.versions.high + 1):
        request = decode(api.request, version, memoryview(encode(example(api.request), version)))
        told = refusal(api, request, ErrorCode.UNSTABLE_OFFSET_COMMIT, None)
        answer = decode(api.response, version, memoryview(encode(told, version)))
        topics = answer.topics if version < 8 else answer.groups[0].topics
        assert topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert {answer.error_code, *(each.error_code for each in answer.groups)} == {0}


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_the_error_is_told_in_every_version(api: Api) -> None:
    first = _FIRST_WITH_PLACE.get(api.name, api.versions.low)
    for version in range(first, api.versions.high + 1):
        request = decode(api.request, version, memoryview(encode(example(api.request), version)))
        told = refusal(api, request, CODE, "because")
        answer = decode(api.response, version, memoryview(encode(told, version)))
        assert CODE in codes(answer), f"version {version}: {answer}"
