"""Addresses of pages, with quoted parts."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def place(path: str, *parts: object, **query: object) -> str:
    """Return an address from a path, further parts of it, and a query without None and empty values."""
    whole = path + "".join(f"/{quote(str(each), safe='')}" for each in parts)
    asked = {name.rstrip("_"): str(value) for name, value in query.items() if value is not None and value != ""}
    return f"{whole}?{urlencode(asked)}" if asked else whole
