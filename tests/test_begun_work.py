"""Work that begins immediately; a task runs the rest of it, if there is any, to the end."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.long_work import begin, turn


def test_what_never_waits_has_ended() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("all")

    assert begin(work()) is None
    assert done == ["all"]


def test_the_rest_follows_a_turn_and_a_wait() -> None:
    async def both() -> list[object]:
        seen: list[object] = []
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            seen.append("begun")
            await turn
            seen.append(await answer)
            return "ended"

        rest = begin(work())
        assert rest is not None
        task = asyncio.ensure_future(rest)
        await asyncio.sleep(0)
        answer.set_result("answered")
        return [*seen, await task, *seen]

    assert asyncio.run(both()) == ["begun", "ended", "begun", "answered"]


def test_what_waits_at_once_is_cancelled_with_its_task() -> None:
    async def cancelled() -> list[str]:
        seen = []
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await answer
            finally:
                seen.append("cleaned up")

        rest = begin(work())
        assert rest is not None
        task = asyncio.ensure_future(rest)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(cancelled()) == ["cleaned up"]


def test_an_error_before_the_first_wait_is_raised() -> None:
    async def work() -> None:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        begin(work())
