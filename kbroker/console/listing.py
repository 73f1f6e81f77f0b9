"""Addresses of pages, with quoted parts, and long lists that are shown page by page, with a search.

Owns the rules by which a search for topics, groups and ACLs matches, and the computation of page numbers. A page number
beyond the end selects the last page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode


def place(path: str, *parts: object, **query: object) -> str:
    """Return an address: a path, further parts of the path, and a query. The query omits None and empty values."""
    whole = path + "".join(f"/{quote(str(each), safe='')}" for each in parts)
    given = {name.rstrip("_"): str(value) for name, value in query.items() if value is not None and value != ""}
    return f"{whole}?{urlencode(given)}" if given else whole


T = TypeVar("T")
PER_PAGE: Final = 50


def has_words(text: str, search: str) -> bool:
    """Whether a text contains all words of a search, in any order and any case."""
    lower = text.lower()
    return all(word in lower for word in search.lower().split())


class Listing(Generic[T]):
    """A page of a list."""

    def __init__(
        self, items: Sequence[T], page: int, path: str, query: dict[str, Any] | None = None, per_page: int = PER_PAGE
    ) -> None:
        self.total = len(items)
        self.pages = max(-(-len(items) // per_page), 1)
        self.page = min(page, self.pages)
        start = (self.page - 1) * per_page
        self.items = items[start : start + per_page]
        self.first = start + 1 if self.items else 0
        self.last = start + len(self.items)
        self._path = path
        self._query = query or {}

    def href(self, page: int) -> str:
        """Return the address of another page of the list."""
        return place(self._path, **{**self._query, "page": page if page > 1 else None})
