"""The words of the filter language, and the error that names a position.

Owns the limits on the size of an expression. Reads any text in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

LONGEST: Final = 10_000
"""The maximum size of an expression in bytes."""
MOST_TOKENS: Final = 2_000
"""The maximum number of words, literals and signs of an expression."""
DEEPEST: Final = 40
"""The maximum depth of nested parentheses, NOT and calculations."""
KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "TIMESTAMP")
)
"""The keywords, which may be written in upper or lower case."""
FIELDS: Final = ("header", "key", "value", "timestamp", "offset", "partition")
_TOKEN: Final = re.compile(
    r"""
    (?P<text>'[^']*(?:''[^']*)*')
  | (?P<name>"[^"]*(?:""[^"]*)*")
  | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?!\w))
  | (?P<word>[^\W\d]\w*)
  | (?P<mark><>|!=|<=|>=|\|\||[=<>+\-*/(),.\[\]])
    """,
    re.VERBOSE,
)
_SPACE: Final = re.compile(r"\s*")
_TAGS: Final = re.compile(r"\s*[\w-]+(?:\s*\|\|\s*[\w-]+)*\s*")
_TAG: Final = re.compile(r"[\w-]+")


class FilterError(ValueError):
    """An expression is not accepted. The error's text is one line with the position, counted from 1."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"at character {at + 1}: {reason}")


class Token(NamedTuple):
    """A part of an expression. `kind` is text, name (in double quotes), number, word, mark or end."""

    kind: str
    text: str
    """The text without quotes; a keyword in upper case."""
    at: int
    """The index of the token's first character."""


def check_size(text: str) -> None:
    """Raise FilterError for a text that is too long, or is not valid Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(error.start, "this is not UTF-8") from None
    if size > LONGEST:
        raise FilterError(min(LONGEST, len(text)), f"an expression has at most {LONGEST} bytes, not {size}")
    if not text.strip():
        raise FilterError(0, "the expression is empty; * matches every record")


def tags(text: str) -> list[Token] | None:
    """Return the tags of an expression that consists only of words and `||`; otherwise None. Raises FilterError."""
    if not _TAGS.fullmatch(text):
        return None
    found = [Token("word", each[0], each.start()) for each in _TAG.finditer(text)]
    if len(found) == 1 and found[0].text.upper() in ("TRUE", "FALSE"):
        return None
    for tag in found:
        if tag.text.upper() in KEYWORDS or tag.text in FIELDS:
            reason = f"{tag.text} alone is no condition; the tag of this name is header.tag = '{tag.text}'"
            raise FilterError(tag.at, reason)
    if len(found) > MOST_TOKENS // 2:
        raise FilterError(found[MOST_TOKENS // 2].at, f"an expression has at most {MOST_TOKENS} parts")
    return found


def tokens(text: str) -> list[Token]:
    """Return the tokens of an expression. The last token has the kind `end`. Raises FilterError."""
    found = list(_read(text))
    if len(found) > MOST_TOKENS:
        raise FilterError(found[MOST_TOKENS].at, f"an expression has at most {MOST_TOKENS} parts")
    return [*found, Token("end", "", len(text))]


def _read(text: str) -> Iterator[Token]:
    position = 0
    while True:
        space = _SPACE.match(text, position)
        position = position if space is None else space.end()
        if position == len(text):
            return
        found = _TOKEN.match(text, position)
        if found is None:
            raise FilterError(position, _unreadable(text[position]))
        kind, content = str(found.lastgroup), found[0]
        if kind in ("text", "name"):
            content = content[1:-1].replace(content[0] * 2, content[0])
        yield Token(kind, content, position)
        position = found.end()


def _unreadable(character: str) -> str:
    if character in "'\"":
        return f"the closing {character} is missing"
    if character.isdecimal():
        return "this is no number; a text is in single quotes, a name that begins with a digit in double quotes"
    return f"{character!r} has no meaning here; a text is in single quotes, a name with other characters in double ones"
