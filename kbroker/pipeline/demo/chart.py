"""Visits by organisation and day as a picture (PNG) and as a self-contained page (HTML).

Owns the presentation of the numbers. Never counts visits.
"""

from __future__ import annotations

import html
import io
from collections import Counter
from pathlib import Path
from typing import Any, Final

from kbroker.pipeline.visits.lookup import UNKNOWN

_PALETTE: Final = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
"""The colours of the largest organisations.

All other organisations share one colour, and unknown visitors have a colour of their own.
"""
_REST: Final = "others"
_APART: Final = {_REST: "#c8c8c8", UNKNOWN: "#707070"}
Row = dict[str, Any]


def by_organisation(rows: list[Row]) -> tuple[list[str], dict[str, list[int]]]:
    """Return the days in order, and the visits by organisation and day.

    The largest organisations come first, then all other organisations as one, then the unknown visitors.
    """
    days = sorted({row["day"] for row in rows})
    total: Counter[str] = Counter()
    for row in rows:
        total[row["organisation"]] += row["visits"]
    unknown = total.pop(UNKNOWN, None)
    named = [name for name, _ in total.most_common(len(_PALETTE))]
    apart = [*([_REST] if len(total) > len(named) else []), *([UNKNOWN] if unknown is not None else [])]
    visits = {name: [0] * len(days) for name in [*named, *apart]}
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
    colours = iter(_PALETTE)
    for name, numbers in visits.items():
        colour = _APART.get(name) or next(colours)
        bars = axes.bar(days, numbers, bottom=bottom, label=f"{name} ({sum(numbers):,})", width=0.7, color=colour)
        bottom = [one + other for one, other in zip(bottom, numbers, strict=True)]
    if visits:
        axes.bar_label(bars, [f"{total:,}" for total in bottom], padding=2)
    axes.set_title(title)
    axes.set_ylabel("visits")
    axes.spines[["top", "right"]].set_visible(False)
    if visits:  # list the organisations from top to bottom, in the order of the bars
        axes.legend(title="visits by", reverse=True, bbox_to_anchor=(1.01, 1), loc="upper left", frameon=False)
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
    sums = [str(sum(row[name] for row in rows)) if type(rows[0][name]) is int else "" for name in names]
    foot = "".join(f"<td>{text if place else 'total'}</td>" for place, text in enumerate(sums))
    return _PAGE.format(
        title=html.escape(title), note=html.escape(note), svg=svg[svg.index("<svg") :], head=head, body=body, foot=foot
    )


def save(rows: list[Row], folder: Path, title: str, note: str) -> tuple[Path, Path]:
    """Write `visits.png` and `visits.html` into a folder. Return their paths."""
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
th {{ cursor: pointer; }}
tfoot td {{ font-weight: bold; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
<h1>{title}</h1>
<p>{note}</p>
{svg}
<table><thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody><tfoot><tr>{foot}</tr></tfoot></table>
<script>
// A click on a column's head sorts by it, another one the other way round.
document.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {{
  const body = document.querySelector("tbody"), down = head.dataset.down !== "1";
  const text = row => row.cells[column].textContent;
  head.dataset.down = down ? "1" : "";
  [...body.rows].sort((a, b) => (down ? 1 : -1) * text(a).localeCompare(text(b), "en", {{numeric: true}}))
    .forEach(row => body.append(row));
}}));
</script>
</html>
"""
