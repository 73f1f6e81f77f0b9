"""What a page and an action are.

Owns their form: a page is a path and what finds its facts, an action is a form that changes something. How they are
guarded, rendered and noted is the application's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kbroker.admin.errors import WrongInput
from kbroker.console.console import Console
from kbroker.console.values import Values


def check_typed(values: Values, name_field: str) -> None:
    """Raise WrongInput unless the name was typed that this destroys."""
    if values.text("confirm") != values.needed(name_field, "the name"):
        raise WrongInput(f"type {values.text(name_field)} to confirm")


Facts = dict[str, Any]
Find = Callable[[Console, Values], Awaitable[Facts]]
Answer = Callable[[Console, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path, its template, and what finds what the template shows."""

    path: str
    template: str
    find: Find


@dataclass(frozen=True, slots=True)
class Raw:
    """A path that answers by itself: a download, a stream."""

    path: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, and the page that shows it."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Action:
    """A change: `run` is called in a thread with the console, an admin client and what was sent."""

    name: str
    run: Callable[[Console, Any, Values], Done]
    confirms: str | None = None
    """The field whose value has to be typed once more before it is done."""
    secret: frozenset[str] = field(default_factory=frozenset)
    """Fields that nobody may read in the log."""
    long: frozenset[str] = field(default_factory=frozenset)
    """Fields of which the log tells the length only."""

    @property
    def path(self) -> str:
        """Where its form is sent."""
        return f"/do/{self.name}"

    def check(self, values: Values) -> None:
        """Raise WrongInput unless the name was typed that this destroys."""
        if self.confirms is not None:
            check_typed(values, self.confirms)
