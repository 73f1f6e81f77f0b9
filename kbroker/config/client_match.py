"""The clients of a metrics subscription: selectors, each with a regex (KIP-714).

Owns the parsing of a `match`, and the selectors. Never knows a client: the caller passes a client's values.

A regex has RE2's syntax and must match the complete text. Additional features of Java, such as lookaround, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kbroker.config.model import InvalidConfig

CLIENT_INSTANCE_ID: Final = "client_instance_id"
CLIENT_ID: Final = "client_id"
CLIENT_SOFTWARE_NAME: Final = "client_software_name"
CLIENT_SOFTWARE_VERSION: Final = "client_software_version"
CLIENT_SOURCE_ADDRESS: Final = "client_source_address"
CLIENT_SOURCE_PORT: Final = "client_source_port"
SELECTORS: Final = frozenset(
    {
        CLIENT_INSTANCE_ID,
        CLIENT_ID,
        CLIENT_SOFTWARE_NAME,
        CLIENT_SOFTWARE_VERSION,
        CLIENT_SOURCE_ADDRESS,
        CLIENT_SOURCE_PORT,
    }
)
MOST_PATTERNS: Final = 16
LONGEST_PATTERN: Final = 1_000
"""In characters."""
MOST_UNICODE_CLASSES: Final = 16
"""The maximum number of Unicode classes in a match. RE2 compiles one class more slowly than a complete simple regex."""
_MAX_MEMORY_BYTES: Final = 256 * 1024
"""The memory limit of one regex. RE2 refuses a regex that needs more. The time to match is linear in the text."""
_BLANK: Final = "".join(map(chr, range(0x21)))
Match = Mapping[str, Callable[[str], Any]]


def parse_match(patterns: Iterable[str]) -> Match:
    """Return the matcher of each selector.

    If a selector has two regexes, the later one counts. Raises InvalidConfig.
    """
    patterns = list(patterns)
    if len(patterns) > MOST_PATTERNS:
        raise InvalidConfig(f"More than {MOST_PATTERNS} client matching patterns")
    if sum(each.count("\\p") + each.count("\\P") for each in patterns) > MOST_UNICODE_CLASSES:
        raise InvalidConfig(f"More than {MOST_UNICODE_CLASSES} Unicode classes in client matching patterns")
    found: dict[str, Callable[[str], Any]] = {}
    for pattern in patterns:
        if len(pattern) > LONGEST_PATTERN:
            raise _illegal(f"{pattern[:100]}...")
        parts = pattern.split("=")
        while len(parts) > 1 and not parts[-1]:  # as Java's split does
            parts.pop()
        if len(parts) != 2 or (selector := parts[0].strip(_BLANK)) not in SELECTORS:
            raise _illegal(pattern)
        found[selector] = _compiled(pattern, parts[1].strip(_BLANK))
    return found


def _compiled(pattern: str, regex: str) -> Callable[[str], Any]:
    import re2  # imported late: RE2 costs 5 ms and 2.5 MB, and few brokers need it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        fullmatch: Callable[[str], Any] = re2.compile(regex, options).fullmatch
    except (re2.error, UnicodeEncodeError):
        raise _illegal(pattern) from None
    return fullmatch


def fits(match: Match, texts: Mapping[str, str | None]) -> bool:
    """Whether a client with these values matches. A selector whose value is missing never matches."""
    for selector, fullmatch in match.items():
        text = texts.get(selector)
        if text is None:
            return False
        try:
            if fullmatch(text) is None:
                return False
        except UnicodeEncodeError:  # a client id may contain invalid text
            return False
    return True


def _illegal(pattern: str) -> InvalidConfig:
    return InvalidConfig(f"Illegal client matching pattern: {pattern}")
