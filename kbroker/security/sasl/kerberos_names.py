"""Names of Kerberos principals, and their rules for user names: `sasl.kerberos.principal.to.local.rules`.

Owns their syntax and meaning, which are those of Kafka's KerberosShortNamer and of Hadoop's auth_to_local. Pure.

    DEFAULT                                the first part of a name whose realm is this machine's
    RULE:[n:format](pattern)s/from/to/gL   for names with n parts: $1, $2 are the parts and $0 the realm in `format`;
                                           the complete result must match `pattern`; then `from` becomes `to`, with g
                                           everywhere, and L or U convert the name to lower or upper case

The first rule that matches is applied. Patterns are Python's; constructs that such rules use mean the same in Java.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kbroker.security.tls.mapping import BadRules, NoRule, expanded

KEY: Final = "sasl.kerberos.principal.to.local.rules"
_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)|RULE:\[(?P<parts>\d*):(?P<format>[^\]]*)\](?:\((?P<pattern>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER: Final = re.compile(r"\$(\d*)")
_LONGEST: Final = 1024
"""The maximum length in characters of a principal's name. On longer names, the operator's patterns could be slow."""


class KerberosName(NamedTuple):
    """The parts of a name; `host` and `realm` may be missing."""

    service: str
    host: str | None
    realm: str | None

    @classmethod
    def parse(cls, text: str) -> KerberosName:
        """Parse service/host@REALM. Raises ValueError."""
        found = _NAME.fullmatch(text)
        if found is not None:
            return cls(found[1], found[2], found[3])
        if "@" in text:
            raise ValueError(f"{text[:_LONGEST]!r} is no name of a Kerberos principal")
        return cls(text, None, None)


@dataclass(frozen=True, slots=True)
class _Rule:
    parts: int
    """The number of parts of a matching name; 0 for DEFAULT."""
    format: str = ""
    pattern: re.Pattern[str] | None = None
    replaced: re.Pattern[str] | None = None
    replacement: str = ""
    everywhere: bool = False
    case: str = ""

    def apply(self, parameters: Sequence[str], default_realm: str) -> str | None:
        """Return the result for a realm and a name's parts; None if the rule does not match. Raises NoRule."""
        if not self.parts:
            found = parameters[1] if parameters[0] == default_realm else None
        else:
            found = self._formatted(parameters) if len(parameters) - 1 == self.parts else None
        if found is None:
            return None
        if "/" in found or "@" in found:
            raise NoRule(f"a rule of {KEY} converts a name to {found!r}, which is not a name")
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found

    def _formatted(self, parameters: Sequence[str]) -> str | None:
        base = _PARAMETER.sub(lambda one: parameters[int(one[1])], self.format)
        if self.pattern is not None and self.pattern.fullmatch(base) is None:
            return None
        if self.replaced is None:
            return base
        return self.replaced.sub(
            lambda match: expanded(self.replacement, match), base, count=0 if self.everywhere else 1
        )


class PrincipalNamer:
    """The rules of a listener; `default_realm` is the machine's Kerberos realm, or ""."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Parse the rules. Raises BadRules."""
        self._rules = [_parsed(each) for each in rules]
        self._default_realm = default_realm

    def name_of(self, principal: str) -> str:
        """Return the user name for a principal. Raises NoRule."""
        if len(principal) > _LONGEST:
            raise NoRule(f"a Kerberos principal of {len(principal)} characters")
        try:
            name = KerberosName.parse(principal)
        except ValueError as error:
            raise NoRule(str(error)) from None
        if name.realm is None:
            return name.service
        parts = (name.service,) if name.host is None else (name.service, name.host)
        for rule in self._rules:
            found = rule.apply((name.realm, *parts), self._default_realm)
            if found is not None:
                return found
        raise NoRule(f"no rule of {KEY} fits {principal}")


def _parsed(text: str) -> _Rule:
    found = _RULE.fullmatch(text)
    if found is None or (found["default"] is None and not found["parts"]):
        raise BadRules(f"{text!r} is neither DEFAULT nor RULE:[parts:format](pattern)s/from/to/ followed by g, L or U")
    if found["default"] is not None:
        return _Rule(0)
    parts = int(found["parts"])
    for parameter in _PARAMETER.finditer(found["format"]):
        if not parameter[1] or int(parameter[1]) > parts:
            raise BadRules(f"{text!r}: {parameter[0]} is none of $0 to ${parts}")
    if not parts:
        raise BadRules(f"{text!r}: each name has at least one part")
    try:
        pattern, replaced = (None if found[name] is None else re.compile(found[name]) for name in ("pattern", "from"))
    except re.error as error:
        raise BadRules(f"{text!r}: a pattern can't be read: {error}") from None
    return _Rule(parts, found["format"], pattern, replaced, found["to"] or "", bool(found["all"]), found["case"] or "")


def service_of(principal: str) -> str:
    """Return the service of a principal's name, "" for an invalid name."""
    try:
        return KerberosName.parse(principal).service
    except ValueError:
        return ""
