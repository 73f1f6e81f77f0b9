"""Regular expressions in linear time: RE2's.

Owns the options. What RE2 lacks (back-references, look-around) raises WrongInput, as does an invalid pattern.
"""

from __future__ import annotations

from typing import Any, Final

import re2

from kbroker.admin.errors import WrongInput

LONGEST: Final = 1_000
_MOST_MEMORY: Final = 4 * 1024 * 1024


def compiled(text: str) -> Any:
    """Return a pattern that searches bytes; raises WrongInput."""
    if len(text) > LONGEST:
        raise WrongInput(f"a regular expression has at most {LONGEST} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        return re2.compile(text.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise WrongInput(f"{text[:100]!r} is no regular expression: {reason}") from None
