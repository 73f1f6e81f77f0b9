"""The operations as a page for people, without external resources; document.py has the same for programs.

Owns its content and its style.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

from kbroker.control.document import ABOUT, shown
from kbroker.control.operations import Operation

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-family:ui-monospace,monospace}h2{margin:2rem 0 0;font-size:1rem}"
    "td,th{text-align:left;vertical-align:top;padding:.1rem 1rem .1rem 0}p{margin:.2rem 0 .5rem}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8bf}}"
)


def page(operations: Iterable[Operation]) -> str:
    """Return a page of HTML, without scripts."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>kbroker control</title>",
        f"<style>{_STYLE}</style><h1>kbroker control</h1><p>{html.escape(ABOUT)}</p>",
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a></p>',
    ]
    for each in operations:
        parts.append(f"<h2><code>{each.method} {html.escape(shown(each.path))}</code></h2>")
        parts.append(f"<p>{html.escape(each.summary)}</p>")
        fields = [*each.query, *(each.body or ())]
        if fields:
            where = "in the query" if each.query else "in the body"
            rows = "".join(
                f"<tr><td><code>{field.name}</code><td>{field.kind}{' (required)' if field.required else ''}"
                f"<td>{html.escape(field.meaning)}"
                for field in fields
            )
            parts.append(f"<table><tr><th>{where}<th>is<th>meaning{rows}</table>")
    return "\n".join(parts) + "\n"
