"""Names of subjects, and the contexts that contain them.

A subject without a context is in the default context, ".". A subject in another context is written ":.context:subject",
and a context alone ":.context:". Owns this form (Confluent: QualifiedSubject, without tenants). Never looks up a
subject.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
"""The context whose config and mode apply to all contexts without their own config or mode."""
ANY_CONTEXT: Final = ":*:"
_RESERVED: Final = ("__GLOBAL", "__EMPTY")


class Subject(NamedTuple):
    """A subject in its context; a context alone has an empty name."""

    context: str
    name: str

    def __str__(self) -> str:
        return qualified_context(self.context) + self.name

    @property
    def is_context(self) -> bool:
        return not self.name


def qualified_context(context: str) -> str:
    """Return the text of a context before a subject's name; empty for the default context."""
    return "" if context == DEFAULT_CONTEXT else f":{context}:"


def parse(text: str) -> Subject:
    """Parse a subject's name."""
    if text.startswith(":."):
        context, _, name = text[1:].partition(":")
        return Subject(context, name)
    if text.startswith(ANY_CONTEXT):
        return Subject("*", text[len(ANY_CONTEXT) :])
    return Subject(DEFAULT_CONTEXT, text)


def normalised(text: str) -> str:
    """Return a subject's name in normal form."""
    return str(parse(text))


def beside(parent: str, text: str) -> str:
    """Return a referenced subject. A subject without a context gets the context of the schema with the reference."""
    subject = parse(text)
    if subject.context == DEFAULT_CONTEXT:
        subject = Subject(parse(parent).context, subject.name)
    return str(subject)


def context_of(text: str) -> str:
    """Return the context that a text names, with or without colons and the dot. Raises ValueError.

    A path /contexts/blue/… means the context ".blue".
    """
    name = text.removeprefix(":").removesuffix(":")
    if ":" in name:
        raise ValueError(f"Context name '{name}' cannot contain a colon")
    return name if name.startswith(".") else f".{name}"


def is_valid(text: str, *, for_settings: bool = False) -> bool:
    """Whether schemas can be registered under a name.

    With `for_settings`: whether the name can have a config or a mode.
    """
    if any(character < " " or "\x7f" <= character <= "\x9f" for character in text):
        return False
    subject = parse(text)
    if subject.name in _RESERVED:
        return False
    return for_settings or (subject.context != GLOBAL_CONTEXT and subject.name not in ("", "*"))
