"""The form of a page and of an action.

A page is a path with a function that finds its facts; an action is a form that changes something. The application
guards, renders and logs them.
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
    """Raise WrongInput unless the user typed the name of the entity that the action destroys."""
    if values.text("confirm") != values.needed(name_field, "the name"):
        raise WrongInput(f"type {values.text(name_field)} to confirm")


Facts = dict[str, Any]
Find = Callable[[Console, Values], Awaitable[Facts]]
Answer = Callable[[Console, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path, its template, and the function that finds the template's facts."""

    path: str
    template: str
    find: Find


@dataclass(frozen=True, slots=True)
class Raw:
    """A path with an answer other than a page: a download or a stream."""

    path: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Done:
    """The text about a finished action, and the page that shows its effect."""

    text: str
    href: str
    stays: bool = False
    """Whether the form stays open and shows this text, because the action has changed nothing."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change. `run` is called in a thread, with an admin client (or the console itself) and the form's values."""

    name: str
    run: Callable[[Any, Values], Done]
    confirms: str | None = None
    """The field whose value the user must type again to confirm."""
    secret: frozenset[str] = field(default_factory=frozenset)
    """Fields that must not appear in the log."""
    long: frozenset[str] = field(default_factory=frozenset)
    """Fields whose length, but not content, appears in the log."""
    of_console: bool = False
    """Whether `run` gets the console instead of an admin client: `run` changes the console, or needs its connection."""

    @property
    def path(self) -> str:
        """The path to which the action's form is sent."""
        return f"/do/{self.name}"

    def check(self, values: Values) -> None:
        """Raise WrongInput unless the user typed the name of the entity that the action destroys."""
        if self.confirms is not None:
            check_typed(values, self.confirms)
