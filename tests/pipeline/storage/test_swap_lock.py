"""The lock on a store without rename: whoever changes it last under a condition has it, and no one else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.lock import NAME
from kbroker.pipeline.storage.swap_lock import SwapLock, writer_lock
from tests.pipeline.local_session import local_files

DEAD = json.dumps({"token": "t", "host": "elsewhere", "pid": 1, "renewed": 1000.0})


class Register:
    """A store's one object, which is replaced only under a condition."""

    root = "s3://b/a"
    swaps = True

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.tag = 0
        self.answers = True

    def url(self, relative: str = "") -> str:
        return f"{self.root}/{relative}"

    def exists(self, relative: str) -> bool:
        assert relative == NAME
        return self.text is not None

    def read(self, relative: str) -> str:
        assert self.text is not None
        return self.text

    def modified(self, relative: str) -> float:
        return 1000.0

    def tagged(self, relative: str) -> tuple[str, str] | None:
        return None if self.text is None else (self.text, str(self.tag))

    def swap(self, relative: str, text: str, tag: str | None) -> str | None:
        if tag != (None if self.text is None else str(self.tag)):
            return None
        self.text, self.tag = text, self.tag + 1
        if not self.answers:
            self.answers = True
            raise PipelineError("no answer")
        return str(self.tag)


class Before(Register):
    """A writer's view of a store in which somebody else is quicker."""

    def __init__(self, register: Register) -> None:
        super().__init__(register.text)
        self._now = register
        self._seen = register.tagged(NAME)

    def tagged(self, relative: str) -> tuple[str, str] | None:
        return self._seen

    def swap(self, relative: str, text: str, tag: str | None) -> str | None:
        return self._now.swap(relative, text, tag)

    def exists(self, relative: str) -> bool:
        return self._now.exists(relative)

    def read(self, relative: str) -> str:
        return self._now.read(relative)


def lock(register: Any, now: float = 5000.0, **options: Any) -> SwapLock:
    return SwapLock(register, lambda: now, **options)


@pytest.mark.parametrize("found", [None, DEAD, "no JSON", json.dumps({"released": True})])
def test_of_two_writers_that_find_the_same_one_gets_the_lock(found: str | None) -> None:
    register = Register(found)
    slow = lock(Before(register))
    with lock(register) as first:
        with pytest.raises(PipelineError, match=r"another job writes to s3://b/a \(process \d+ on "):
            slow.__enter__()
        first.check()


def test_lock_that_is_renewed_is_left_alone_and_one_that_is_released_is_free() -> None:
    register = Register(DEAD)
    with pytest.raises(PipelineError, match=r"another job writes to s3://b/a \(process 1 on elsewhere\)"):
        lock(register, 1599).__enter__()
    for _ in range(2):
        with lock(register, 1601) as ours:
            ours.check()
            with pytest.raises(PipelineError, match="another job writes to"):
                lock(register, 9999).__enter__()  # this process runs, whatever the clock says
        assert register.text is not None
        assert json.loads(register.text) == {"released": True}


def test_owner_that_was_believed_dead_neither_renews_nor_releases_the_lock_of_another() -> None:
    register = Register()
    with lock(register) as first:
        register.text = DEAD  # an owner elsewhere has taken it over
        register.tag += 1
        first._renew_once()
        assert register.text == DEAD
        with pytest.raises(PipelineError, match="another job took over writing to s3://b/a"):
            first.check()
    assert register.text == DEAD


def test_renewal_whose_answer_was_lost_is_still_ours() -> None:
    register = Register()
    with lock(register) as ours:
        register.answers = False
        with pytest.raises(PipelineError, match="no answer"):
            ours._renew_once()
        before = register.tag
        ours._renew_once()
        ours._renew_once()
        assert register.tag == before + 1
        ours.check()
    assert register.text == json.dumps({"released": True}) + "\n"


def test_files_of_this_machine_have_the_lock_with_a_rename(tmp_path: Any) -> None:
    with writer_lock(local_files(tmp_path)) as found:
        assert not isinstance(found, SwapLock)
        found.check()
