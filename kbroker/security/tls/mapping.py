r"""Rules that convert a distinguished name to a principal's name: `ssl.principal.mapping.rules` (KIP-371).

Owns their syntax and meaning, which are those of Kafka's SslPrincipalMapper. Never reads a certificate.

    RULE:^CN=(.*?),OU=users.*$/$1/L, RULE:^CN=(.*?)$/$1/, DEFAULT

The first rule whose pattern matches the whole name counts; L and U change the case of the result. Patterns are
Python's; constructs that such rules use mean the same in Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLIT: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSE: Final = re.compile(_RULE)
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class BadRules(Exception):  # noqa: N818 - named after the setting
    """The rules cannot be parsed; the message names the wrong rule."""


class NoRule(Exception):  # noqa: N818 - an outcome
    """No rule matches a name."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """The pattern of the name; None if the rule does not change the name."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(lambda match: expanded(self.replacement, match), name)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found


class PrincipalMapper:
    """The rules of a listener."""

    def __init__(self, text: str) -> None:
        """Parse the rules. Raises BadRules."""
        self._rules = tuple(_rules(text))

    def name_of(self, distinguished_name: str) -> str:
        """Return the principal's name. Raises NoRule."""
        for rule in self._rules:
            found = rule.apply(distinguished_name)
            if found is not None:
                return found
        raise NoRule(f"no rule of ssl.principal.mapping.rules fits {distinguished_name}")


def _rules(text: str) -> Iterator[_Rule]:
    for split in _SPLIT.finditer(text.strip()):
        rule = split[1]
        found = _PARSE.match(rule)
        if found is None or found.end() != len(rule):
            raise BadRules(f"{rule!r} is neither DEFAULT nor RULE:pattern/replacement/ with L or U behind it")
        if found[1] is not None:
            yield _Rule(None)
        elif found[2] is not None:
            try:
                pattern = re.compile(found[2])
            except re.error as error:
                raise BadRules(f"the pattern {found[2]!r} can't be read: {error}") from None
            yield _Rule(pattern, found[3], found[4])


def expanded(replacement: str, match: re.Match[str]) -> str:
    """Return a replacement with its groups inserted.

    If a group number is too large, its last digits or the complete number stay text.
    """
    groups = match.re.groups

    def put(reference: re.Match[str]) -> str:
        if reference[1] is not None:
            return reference[1]
        digits = reference[2]
        used = digits
        while len(used) > 1 and int(used) > groups:
            used = used[:-1]
        if int(used) > groups:
            return reference[0]
        return (match[int(used)] or "") + digits[len(used) :]

    return _REFERENCE.sub(put, replacement)
