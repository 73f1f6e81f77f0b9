"""A refusal can be sent for every API in every version, and has the error code in a field that clients check."""

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
"""Before version 7, Fetch answers have error codes for partitions only, and the fault itself sets these."""
CODE = ErrorCode.KAFKA_STORAGE_ERROR


def example(kind: Any) -> Any:
    """Return a struct with one element in every list, and a value in every field that names a refused subject."""
    values: dict[str, Any] = {}
    for spec in kind.SPECS:
        if spec.name == "acks":
            values[spec.name] = 1  # with acks=0 there would be no answer
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
    """Return the error codes in all fields of an answer."""
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
