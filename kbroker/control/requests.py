"""Requests over HTTP: clients' requests and their responses, as a list, or one by one when they arrive.

Owns the number of listed requests. A slow reader misses requests, because the broker keeps only a limited number
(testing/requests.py). Never delays a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from kbroker.control.as_json import json_bytes, request_json
from kbroker.control.operations import Control, Operation, until
from kbroker.control.values import ABOUT, LIMIT, TIMEOUT, USUAL_LIMIT, Refused, Values
from kbroker.fields import Field
from kbroker.testing.known import check_apis, check_filters
from kbroker.testing.requests import KEPT, Request

MOST_BYTES: Final = 8 * 1024 * 1024
"""The maximum size in bytes of the JSON of one list. The list contains the newest requests."""
_FOLLOW_S: Final = 0.05
_ABOUT_NAMES: Final = tuple(field.name for field in ABOUT)


def _about(control: Control, values: Values) -> dict[str, Any]:
    about = {name: values[name] for name in _ABOUT_NAMES if name in values}
    if about.get("api") == "*":
        del about["api"]
    if "api" in about:
        check_filters(check_apis([about["api"]], control.subject.faults.apis), about)
    return about


async def _list(control: Control, values: Values) -> dict[str, Any]:
    """Return the newest matching requests, as soon as there are as many requests as the caller wants."""
    about, count = _about(control, values), values.get("count", 0)
    requests = await asyncio.to_thread(lambda: control.subject.requests)

    def answered() -> int:
        return sum(each.duration_ms is not None for each in requests.of(**about))

    if count:
        seen = -1

        def enough() -> bool:
            nonlocal seen
            if requests.answered == seen:
                return False
            seen = requests.answered
            return bool(answered() >= count)

        if not await until(enough, values.get("timeout_ms"), control.ending):
            raise Refused(504, f"{answered()} of {count} {about.get('api', 'requests')} in the time given")
    return await asyncio.to_thread(_listed, requests.of(**about), values.get("limit", USUAL_LIMIT))


def _listed(found: list[Request], limit: int) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    size = 0
    for each in reversed(found[-limit:] if limit else []):
        one = request_json(each)
        size += len(json_bytes(one))
        if listed and size > MOST_BYTES:
            break
        listed.append(one)
    return {"requests": listed[::-1], "left_out": len(found) - len(listed)}


def _live(control: Control, values: Values) -> AsyncIterator[Any]:
    return _followed(control, _about(control, values))


async def _followed(control: Control, about: dict[str, Any]) -> AsyncIterator[Any]:
    requests = await asyncio.to_thread(lambda: control.subject.requests)
    given = requests.answered
    yield {"following": True}
    while not control.ending.is_set():
        if requests.answered == given:
            await asyncio.sleep(_FOLLOW_S)
            continue
        last = requests.answered
        new = [each for each in requests.after(given) if each.number <= last]
        if len(new) < last - given:
            yield {"missed": last - given - len(new)}
        given = last
        for each in new:
            if each.is_about(**about):
                yield await asyncio.to_thread(request_json, each)


def _clear(control: Control, _: Values) -> dict[str, Any]:
    control.subject.requests.clear()
    return {"recording": True}


OPERATIONS: Final = (
    Operation(
        "GET", "/requests", "listRequests",
        "What clients asked and were answered, the oldest first; recorded from the first time on that this is asked. "
        "With `count`: once there are so many answered ones, 504 when there are not in time.",
        "Requests", wait=_list,
        query=(
            *ABOUT,
            LIMIT,
            Field("count", "integer", "Wait until this number of requests is answered.", least=0, most=KEPT),
            TIMEOUT,
        ),
    ),
    Operation(
        "DELETE", "/requests", "clearRequests", "Forget all; what comes from now on is recorded.", "Recording",
        work=_clear,
    ),
    Operation(
        "GET", "/requests/live", "followRequests",
        'Requests as they are answered, a line of JSON each. The first line is {"following": true}; '
        '{"missed": N} stands where a reader was too slow for so many.',
        "Request", lines=_live, query=ABOUT,
    ),
)  # fmt: skip
