"""JAAS login configurations, from which Java programs read the names and passwords for their logins.

Owns the syntax of these files (javax.security.auth.login.Configuration). Knows no login module.

    Client {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        username="kafka" password="secret";
    };
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
      | "(?P<quoted>(?:[^"\\\n]|\\.)*)"
      | (?P<sign>[{};=])
      | (?P<word>[^\s{};="]+)""",
    re.VERBOSE | re.DOTALL,
)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


class JaasError(Exception):
    """Raised if a text is not a login configuration. The message contains the place and the reason."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One way to log in: a Java class, and its options."""

    name: str
    options: Mapping[str, str]


class _Token(NamedTuple):
    line: int
    text: str
    is_sign: bool


def parse_jaas(text: str) -> dict[str, list[LoginModule]]:
    """Return the login modules of each section of a login configuration. Raises JaasError."""
    tokens = _Tokens(text)
    sections: dict[str, list[LoginModule]] = {}
    while tokens.left:
        name = tokens.word("the name of a section")
        if name in sections:
            raise JaasError(f"line {tokens.line}: there are two sections {name}")
        tokens.sign("{")
        modules = sections[name] = [_module(tokens)]
        while not tokens.has("}"):
            modules.append(_module(tokens))
        tokens.sign("}")
        tokens.sign(";")
    return sections


def _module(tokens: _Tokens) -> LoginModule:
    name = tokens.word("the class of a login module")
    flag = tokens.word("required, requisite, sufficient or optional")
    if flag.lower() not in _FLAGS:
        raise JaasError(f"line {tokens.line}: {flag} is none of required, requisite, sufficient and optional")
    options: dict[str, str] = {}
    while not tokens.has(";"):
        option = tokens.word("an option or ;")
        tokens.sign("=")
        value = tokens.word(f"the value of {option}")
        if "${" in value:
            raise JaasError(f"line {tokens.line}: {option} has a variable, which only Java knows")
        options[option] = value
    tokens.sign(";")
    return LoginModule(name, options)


class _Tokens:
    """The tokens of a text, for reading one by one. `line` is the line number of the last token that was read."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0

    @property
    def left(self) -> bool:
        return self._next < len(self._tokens)

    @property
    def line(self) -> int:
        return self._tokens[max(self._next - 1, 0)].line if self._tokens else 1

    def has(self, sign: str) -> bool:
        """Whether the next token is this sign."""
        return self.left and self._tokens[self._next].is_sign and self._tokens[self._next].text == sign

    def word(self, name: str) -> str:
        if not self.left or self._tokens[self._next].is_sign:
            raise JaasError(f"{self._place()} {name} is missing")
        self._next += 1
        return self._tokens[self._next - 1].text

    def sign(self, sign: str) -> None:
        if not self.has(sign):
            raise JaasError(f"{self._place()} {sign} is missing")
        self._next += 1

    def _place(self) -> str:
        return f"line {self._tokens[self._next].line}:" if self.left else "at the end"


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise JaasError(f"line {line}: a quotation mark is not closed")
        if found.lastgroup == "quoted":
            yield _Token(line, re.sub(r"\\(.)", r"\1", found["quoted"]), is_sign=False)
        elif found.lastgroup != "blank":
            yield _Token(line, found[0], found.lastgroup == "sign")
        line += found[0].count("\n")
        position = found.end()
