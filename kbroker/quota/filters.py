"""The quotas that a DescribeClientQuotas selects (Apache Kafka 4.3: ClientQuotasImage).

Owns the checks of a filter, in Kafka's words, and its matching.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.quota.entities import CLIENT_ID, IP, USER, Entity

EXACT, OF_DEFAULT, ANY = 0, 1, 2
"""A name; the default; any entity of the type."""
_TEXTS: Final = {EXACT: "MATCH_TYPE_EXACT", OF_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}


class QuotaFilter:
    """The components of a request, each a type of entity, a kind of match and a name. Raises ApiError."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        """`strict`: entities must not have types that are not named."""
        self._strict = strict
        self._wanted: dict[str, str | None] = {}
        """By type: the name as in messages; None for any."""
        self._defaults: set[str] = set()
        for kind, match_type, match in components:
            self._add(kind, match_type, match)
        if IP in self._wanted and len(self._wanted) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def _add(self, kind: str, match_type: int, match: str | None) -> None:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in self._wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match_type not in _TEXTS:
            raise _invalid(f"Unknown match type {match_type}")
        if match_type == EXACT and match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != EXACT and match is not None:
            raise _invalid(f"Request specified {_TEXTS[match_type]}, but also specified a match string.")
        self._wanted[kind] = match
        if match_type == OF_DEFAULT:
            self._defaults.add(kind)

    def matches(self, entity: Entity) -> bool:
        """Whether an entity matches."""
        parts = entity.parts()
        if self._strict and (len(parts) != len(self._wanted) or not parts):
            return False
        for kind, name in self._wanted.items():
            if kind not in parts:
                return False
            if kind in self._defaults:
                if parts[kind] is not None:
                    return False
            elif name is not None and parts[kind] != name:
                return False
        return True


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
