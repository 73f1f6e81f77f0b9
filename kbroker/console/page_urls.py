"""Addresses of pages, with whatever is in their parts quoted."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def place(path: str, *parts: object, **query: object) -> str:
    """Return an address: a path, further parts of it, and a query without what is None or empty."""
    whole = path + "".join(f"/{quote(str(each), safe='')}" for each in parts)
    asked = {name.rstrip("_"): str(value) for name, value in query.items() if value is not None and value != ""}
    return f"{whole}?{urlencode(asked)}" if asked else whole
