"""Responses to requests that failed completely: each requested element has the code, in every version."""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

import pytest

from kbroker import handlers
from kbroker.handlers.registry import APIS, Api, CloseConnection
from kbroker.long_work import awaited, whole
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Scalar

handlers.load_all()
CODE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def filled(cls: Any, numbers: Any, *, nulls: bool) -> Any:
    """Return a message whose lists have two elements each; nullable texts are either all set or all null."""

    def one(kind: Any) -> Any:
        if not isinstance(kind, Scalar):
            return filled(kind, numbers, nulls=nulls)
        number = next(numbers) % 100 + 1
        made = {"string": f"s{number}", "bytes": b"b", "records": b"b", "bool": True, "uuid": bytes([number]) * 16}
        return made.get(kind.name, number)

    values: dict[str, Any] = {}
    for spec in cls.SPECS:
        if nulls and not spec.array and isinstance(spec.kind, Scalar) and spec.nullable.low <= spec.nullable.high:
            values[spec.name] = None
        else:
            values[spec.name] = [one(spec.kind), one(spec.kind)] if spec.array else one(spec.kind)
    return cls(**values)


def codes_of(message: Any) -> list[int]:
    """Return the error codes of a message and of all elements of its lists."""
    found = []
    for spec in message.SPECS:
        value = getattr(message, spec.name)
        if spec.name == "error_code":
            found.append(value)
        elif spec.array and not isinstance(spec.kind, Scalar):
            for each in value or ():
                found += codes_of(each)
    return found


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_each_element_has_the_code(api: Api, nulls: bool) -> None:
    whole_request = filled(api.request, count(), nulls=nulls)
    for version in range(api.versions.low, api.versions.high + 1):
        try:
            sent = encode(whole_request, version)
        except (AttributeError, TypeError, struct.error):
            assert nulls, "not every version has null"
            continue
        request = decode(api.request, version, sent)
        try:
            answer = whole(awaited(api.on_error(request, CODE, "why")))
        except CloseConnection:
            assert api.name == "Produce"
            continue
        codes = codes_of(answer)
        # One version of FindCoordinator has a list of coordinators, the others have a single code.
        assert set(codes) - {0} == {CODE}
        assert codes.count(0) == 0 or api.name == "FindCoordinator"
        encoded = encode(answer, version)
        assert encode(decode(api.response, version, encoded), version) == encoded
