"""Whatever is sent, the response is JSON, and the server itself never fails."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker import Broker
from kbroker.control.application import OPERATIONS
from kbroker.control.operations import Operation
from kbroker.fields import Field
from tests.control.conftest import Http

NAMES = st.sampled_from(["orders", "a/b", "ü", "..", "a b", "__consumer_offsets", "%", "x" * 300, "\x00"])
NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, 2**63, 10**30, 1.5, -0.0, 1e308])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | NAMES | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
LIKELY = {
    "string": NAMES | st.sampled_from(["Produce", "*", "NOT_COORDINATOR", "2030-01-01T00:00:00Z", "9999-12-31T00:00Z"]),
    "integer": NUMBERS,
    "number": NUMBERS,
    "names": NAMES | st.just("Produce"),
    "strings": st.dictionaries(st.sampled_from(["cleanup.policy", "retention.ms", "x"]), NAMES | NUMBERS, max_size=2),
    "data": st.sampled_from([None, "v", {"text": "v"}, {"base64": "AA=="}, {"base64": "?"}, {}]),
    "headers": st.lists(st.just({"key": "k", "value": {"base64": "/w=="}}), max_size=2),
}


def value_of(field: Field) -> st.SearchStrategy[Any]:
    likely = st.sampled_from(field.choices) if field.choices else LIKELY[field.kind]
    return st.one_of(likely, likely, likely, ANYTHING)


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, str, Any]:
    operation: Operation = draw(st.sampled_from([each for each in OPERATIONS if each.lines is None]))
    path = operation.path
    for name in operation.places:
        text = draw(st.sampled_from(["0", "1", "99999999999999999999"]) if name == "id" else NAMES)
        path = path.replace(f"{{{name}:int}}", text).replace(f"{{{name}:path}}", f"{{{name}}}")
        path = path.replace(f"{{{name}}}", quote(text, safe=""))
    query = {each.name: draw(value_of(each)) for each in operation.query if draw(st.booleans())}
    if any(each.name == "timeout_ms" for each in operation.query):
        query["timeout_ms"] = 0
    if query:
        path += "?" + urlencode(
            {name: each if isinstance(each, str) else json.dumps(each) for name, each in query.items()},
            errors="replace",
        )
    body = None
    if operation.body is not None:
        body = {
            each.name: draw(value_of(each)) for each in operation.body if each.required or draw(st.integers(0, 3)) == 0
        }
        if draw(st.integers(0, 9)) == 0:
            body = draw(ANYTHING)
    return operation.method, path, body


@given(asked())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_is_sent(broker: Broker, api: Http, what: tuple[str, str, Any]) -> None:
    method, path, body = what
    broker.topics.get("orders") or broker.topics.create("orders")
    try:
        status, told = api(method, path, body)
    finally:
        broker.faults.clear()
    assert status < 500 or (status == 504 and "timeout_ms=0" in path), told
    assert status < 400 or told["error"].isprintable(), told
