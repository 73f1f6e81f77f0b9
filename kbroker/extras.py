"""How to install the optional parts of kbroker. Owns the text of every hint; never checks whether it is installed."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra of pyproject.toml. No package index has kbroker, so it needs a checkout."""
    return f"pip install '.[{extra}]' in a checkout of kbroker"
