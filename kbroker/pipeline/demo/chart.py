"""Visits by organisation and day as a picture (PNG) and as a page that needs nothing beside it (HTML).

Owns how the numbers look. Never counts.
"""

from __future__ import annotations

import html
import io
from collections import Counter
from pathlib import Path
from typing import Any, Final

_NAMED: Final = 8
"""How many organisations have a colour of their own; the rest is one."""
_REST: Final = "others"
Row = dict[str, Any]


def by_organisation(rows: list[Row]) -> tuple[list[str], dict[str, list[int]]]:
    """Return the days in order, and the visits on each by organisation: the largest first, the smallest together."""
    days = sorted({row["day"] for row in rows})
    total: Counter[str] = Counter()
    for row in rows:
        total[row["organisation"]] += row["visits"]
    named = [name for name, _ in total.most_common(_NAMED)]
    visits = {name: [0] * len(days) for name in [*named, *([_REST] if len(total) > len(named) else [])]}
    for row in rows:
        name = row["organisation"] if row["organisation"] in visits else _REST
        visits[name][days.index(row["day"])] += row["visits"]
    return days, visits


def draw(rows: list[Row], title: str, kind: str) -> bytes:
    """Return the chart as bytes of a `kind` ("png" or "svg")."""
    from matplotlib.figure import Figure

    days, visits = by_organisation(rows)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    bottom = [0] * len(days)
    for name, numbers in visits.items():
        axes.bar(days, numbers, bottom=bottom, label=name, width=0.7)
        bottom = [one + other for one, other in zip(bottom, numbers, strict=True)]
    axes.set_title(title)
    axes.set_ylabel("visits")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="organisation", bbox_to_anchor=(1.01, 1), loc="upper left", frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=120)
    return out.getvalue()


def page(rows: list[Row], title: str, note: str) -> str:
    """Return a page with the chart and the table of all numbers."""
    svg = draw(rows, title, "svg").decode()
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(str(row[name]))}</td>" for name in names) + "</tr>" for row in rows
    )
    return _PAGE.format(
        title=html.escape(title), note=html.escape(note), svg=svg[svg.index("<svg") :], head=head, body=body
    )


def save(rows: list[Row], folder: Path, title: str, note: str) -> tuple[Path, Path]:
    """Write `visits.png` and `visits.html` into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, text = folder / "visits.png", folder / "visits.html"
    picture.write_bytes(draw(rows, title, "png"))
    text.write_text(page(rows, title, note), encoding="utf-8")
    return picture, text


_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
<h1>{title}</h1>
<p>{note}</p>
{svg}
<table><thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table>
</html>
"""
