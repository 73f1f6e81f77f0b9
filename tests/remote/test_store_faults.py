"""A store whose answers are refusals, late, torn or lies: each gives its exception in time, and nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator

import psutil
import pytest

from kbroker.remote.object_client import PART_BYTES
from kbroker.remote.object_format import Part
from kbroker.remote.segment_objects import SegmentObject, write_segment
from kbroker.remote.store import Store
from kbroker.remote.store_errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreTooSlowError,
    StoreUnavailableError,
    WrongLengthError,
)
from tests.remote.s3_faults import KEY_ID, S3, SECRET, Proxy, Request, proxy, s3

PATIENCE_S = 15.0
"""Far more than any deadline here, for a busy machine."""
IDLE = 6
"""So many connections may wait for the next request, which the client keeps."""
OBJECT = b"0123456789" * 100


@pytest.fixture(scope="module")
def behind() -> Iterator[S3]:
    with s3() as server:
        yield server


async def listed(store: Store) -> list[str]:
    return [each.name async for each in store.list("")]


VERBS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "put": lambda store: store.put("new", [OBJECT], len(OBJECT)),
    "get": lambda store: store.get("object", 10, 500),
    "head": lambda store: store.head("object"),
    "delete": lambda store: store.delete("object"),
    "list": listed,
}
EXPECTED: dict[str, type[StoreError]] = {
    "403": StoreDeniedError,
    "401": StoreDeniedError,
    "503": StoreUnavailableError,
    "500": StoreUnavailableError,
    "reset": StoreUnavailableError,
    "never": StoreTooSlowError,
    "slow": StoreTooSlowError,
}


async def failed(call: Awaitable[object], expected: type[StoreError]) -> str:
    """Return the line of the expected exception; it has no secret, and comes in time."""
    began = time.monotonic()
    with pytest.raises(expected) as raised:
        await call
    assert time.monotonic() - began < PATIENCE_S
    assert type(raised.value) is expected
    told = "".join(traceback.format_exception(raised.value))
    assert not any(secret in told for secret in (KEY_ID, SECRET, KEY_ID.lower()))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def run(behind: S3, scenario: Callable[[Proxy], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with proxy(behind) as made:
            clean = made.store()
            for name in await listed(clean):
                await clean.delete(name)
            await scenario(made)
            made.arm("")
            await asyncio.gather(*(each.close() for each in made.stores))
            await no_tasks_left(made)

    asyncio.run(whole())


async def no_tasks_left(made: Proxy) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while extra := asyncio.all_tasks() - made.connections - {asyncio.current_task()}:
        assert time.monotonic() < deadline, extra
        await asyncio.wait(extra, timeout=0.1)


@pytest.mark.parametrize("fault", EXPECTED)
def test_every_verb_raises_what_the_fault_is(behind: S3, fault: str) -> None:
    async def scenario(made: Proxy) -> None:
        await made.store().put("object", [OBJECT], len(OBJECT))
        made.arm(fault)
        store = made.store(deadline_s=0.4 if EXPECTED[fault] is StoreTooSlowError else 20)
        lines = await asyncio.gather(*(failed(call(store), EXPECTED[fault]) for call in VERBS.values()))
        assert len(made.seen) >= len(VERBS)
        for verb, line in zip(VERBS, lines, strict=True):
            assert line.startswith(f"{verb} of ")
            assert "in s3://tiers/prefix: " in line
            if EXPECTED[fault] is StoreTooSlowError:
                assert "no answer within 0.4 s" in line

    run(behind, scenario)


def test_a_missing_object_is_not_found_and_may_be_deleted(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        store = made.store()
        assert "no such object (HTTP 404" in await failed(store.get("none", 0, 5), ObjectNotFoundError)
        assert "no such object (HTTP 404" in await failed(store.head("none"), ObjectNotFoundError)
        await store.delete("none")
        made.arm("404")
        await store.delete("none")

    run(behind, scenario)


def test_answers_that_are_torn_or_too_short(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        store = made.store()
        await store.put("object", [OBJECT], len(OBJECT))
        made.arm("short")
        assert "instead of 500 from 10" in await failed(store.get("object", 10, 500), WrongLengthError)
        made.arm("")
        await failed(store.get("object", 990, 500), WrongLengthError)
        await failed(store.get("object", 1990, 500), WrongLengthError)
        made.arm("half", times=2)
        try:
            data = await store.get("object", 10, 500)
        except StoreUnavailableError:
            pass  # one that does not ask for the rest again
        else:
            assert bytes(data) == OBJECT[10:510]
        made.arm("half")
        short = made.store(deadline_s=2)
        with pytest.raises(StoreUnavailableError):  # or too slow, which is one of these
            await short.get("object", 10, 500)

    run(behind, scenario)


def test_what_passes_by_is_repeated_within_the_deadline(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        store = made.store()
        await store.put("object", [OBJECT], len(OBJECT))
        for fault in ("503", "reset"):
            made.arm(fault, times=1)
            assert bytes(await store.get("object", 10, 500)) == OBJECT[10:510]
            assert len(made.seen) == 2

    run(behind, scenario)


def is_part(request: Request) -> bool:
    return "partNumber=" in request.line


def test_a_large_object_that_fails_leaves_no_parts(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        store = made.store()
        pieces = [bytes(PART_BYTES // 4)] * 9
        size = sum(map(len, pieces))
        made.arm("503", is_part)
        await failed(store.put("large", pieces, size), StoreUnavailableError)
        assert behind.open_uploads() == 0
        made.arm("never", lambda request: request.verb == "POST" and "uploadId=" in request.line)
        await failed(made.store(deadline_s=1).put("large", pieces, size), StoreTooSlowError)
        made.arm("head lies", lambda request: request.verb == "HEAD" and len(made.seen) > 3)
        await failed(store.put("large", pieces, size), WrongLengthError)
        made.arm("")
        assert (await store.head("large")).size == size
        assert "exists already" in await failed(store.put("large", pieces, size), ObjectExistsError)
        assert "exists already" in await failed(store.put("large", [b"1"], 1), ObjectExistsError)

    run(behind, scenario)


def test_a_source_that_is_late_leaves_no_parts(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        def late() -> Iterator[bytes]:
            yield bytes(PART_BYTES)
            while not ended.wait(0.01):  # on a thread of the library, until the store asks no more
                yield b"1"

        ended = threading.Event()
        before = behind.open_uploads()
        began = time.monotonic()
        await failed(made.store(deadline_s=0.5).put("large", late(), PART_BYTES * 3), StoreTooSlowError)
        while made.saw("POST", "uploads") and not made.saw("DELETE", "uploadId="):
            assert time.monotonic() < began + PATIENCE_S, made.seen
            await asyncio.sleep(0.05)
        ended.set()
        assert behind.open_uploads() == before

    run(behind, scenario)


def test_segments_go_through(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        store = made.store()
        parts = {Part.LOG: os.urandom(PART_BYTES + 5), Part.TIME_INDEX: b"times"}
        await write_segment(store, "t/0/segment", bytes(16), parts)
        found = await SegmentObject.open(store, "t/0/segment", bytes(16))
        assert [await found.whole(part) for part in (Part.LOG, Part.TIME_INDEX)] == list(parts.values())
        assert await listed(store) == ["t/0/segment"]

    run(behind, scenario)


def test_a_caller_that_goes_away_ends_its_request(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        made.arm("never")
        work = made.store().get("object", 0, 1)
        waiting = work.__await__()
        next(waiting)
        deadline = time.monotonic() + PATIENCE_S
        while not made.saw("GET", "object"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        waiting.close()
        while made.never:
            assert time.monotonic() < deadline, "long before the request's own timeout"
            await asyncio.wait(made.never, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)

    run(behind, scenario)


async def settled(made: Proxy) -> tuple[int, int, int]:
    """Return the numbers of descriptors, live objects and bytes of this process, once its connections have ended."""
    deadline = time.monotonic() + PATIENCE_S
    while len(made.connections) > IDLE:
        assert time.monotonic() < deadline, len(made.connections)
        await asyncio.wait(made.connections, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(gc.get_objects()), psutil.Process().memory_info().rss


def test_failures_leave_no_descriptors_objects_or_memory(behind: S3) -> None:
    async def scenario(made: Proxy) -> None:
        store, hasty = made.store(), made.store(deadline_s=0.05)

        async def fail_often(times: int) -> None:
            for _ in range(times):
                made.arm("404")
                await asyncio.gather(*(failed(store.head("none"), ObjectNotFoundError) for _ in range(4)))
                made.arm("never")
                await asyncio.gather(*(failed(hasty.head("none"), StoreTooSlowError) for _ in range(20)))

        await fail_often(5)
        descriptors, objects, memory = await settled(made)
        await fail_often(20)
        then = await settled(made)
        assert then[0] < descriptors + 20
        assert then[1] < objects + 1000, "less than two an error"
        assert then[2] < memory + (20 << 20)

    run(behind, scenario)
