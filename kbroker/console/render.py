"""Rendering of pages: templates, and the functions for them.

Owns Jinja2's environment, which escapes everything and raises an error for a missing value. Owns the static files,
whose addresses change with their content.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from kbroker.admin.errors import AdminError
from kbroker.console import charts, number_text
from kbroker.console.changes import changes_of
from kbroker.console.listing import place
from kbroker.extras import how_to_install

_HERE: Final = Path(__file__).parent
_OWN: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HTMX: Final = "htmx.min.js"
_BEFORE_A_BREAK: Final = re.compile(r"[._/,@=-]+(?=[^._/,@=-])")


def environment() -> Environment:
    """Return the environment of the templates."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number_text.number,
        short=number_text.short_number,
        size=number_text.size,
        moment=number_text.moment,
        ago=number_text.ago,
        duration=number_text.duration,
        breakable=breakable,
    )
    made.globals.update(
        place=place,
        changes_of=changes_of,
        spark=charts.spark,
        over_time=charts.over_time,
        bar=charts.bar,
        plural=number_text.plural,
        asset=asset,
    )
    # On "/topics/orders" the menu also marks "/topics" as the current page.
    made.tests["in_front_of"] = lambda prefix, path: path == prefix or path.startswith((f"{prefix}/", f"{prefix}s"))
    return made


def breakable(name: str) -> Markup:
    """Return a name that a browser may wrap after dots, dashes and the like, but not within a word."""
    return Markup(_BEFORE_A_BREAK.sub(r"\g<0><wbr>", str(escape(name))))  # no HTML escape contains these characters


def rendered(template: Template, part: str, facts: dict[str, Any]) -> str:
    """Render a page, or only its block named `part` if it has one."""
    alone = part in template.blocks
    return template.render({**facts, "part": part if alone else "", "layout": "part.html" if alone else "base.html"})


@lru_cache(maxsize=1)
def assets() -> dict[str, tuple[bytes, str]]:
    """Return the static files, with their types."""
    found = {name: ((_HERE / "static" / name).read_bytes(), kind) for name, kind in _OWN.items()}
    found[_HTMX] = (_htmx().read_bytes(), "text/javascript")
    return found


def asset(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    return place("/static", name, v=hashlib.sha256(assets()[name][0]).hexdigest()[:12])


def _htmx() -> Path:
    """Return htmx's file. It is in a package for Django, and the code of that package is not needed."""
    spec = importlib.util.find_spec("js_lib_htmx")
    if spec is None or spec.origin is None:
        raise AdminError(f"htmx is not installed: {how_to_install('console')}")
    return Path(spec.origin).parent / "static" / "htmx" / _HTMX
