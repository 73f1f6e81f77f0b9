"""Charts drawn on the server: SVG from numbers, without scripts and without inline styles.

Owns the conversion of numbers to shapes. All text in a chart is escaped; the style sheet sets the colours, by class.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from kbroker.console.number_text import number, short_number
from kbroker.console.series import Series

_SPARK_W: Final = 120
_SPARK_H: Final = 28
_BOTTOM: Final = 28
_TOP: Final = 16


@dataclass(frozen=True, slots=True)
class _Frame:
    """The dimensions of a chart in its own units; the page scales the chart."""

    name: str
    width: int
    height: int
    left: int
    times: int
    """The number of times on the axis."""


_FRAMES: Final = (_Frame("on-wide", 1000, 200, 56, 4), _Frame("on-narrow", 340, 170, 44, 3))
"""A wide chart, and a narrow chart for phones; the style sheet shows one of the two.

On a phone the wide chart's text would shrink to a third.
"""


def spark(series: Series, label: str) -> Markup:
    """Draw a series as a small line, with its newest value as a text for screen readers."""
    points = list(series)
    if len(points) < 2:
        return Markup('<span class="quiet">–</span>')
    path, area = _path(points, 0, 2, _SPARK_W, _SPARK_H - 4, series.largest)
    text = escape(f"{label}: {short_number(series.last or 0)} now, {short_number(series.largest)} at most")
    return Markup(
        f'<svg class="spark" viewBox="0 0 {_SPARK_W} {_SPARK_H}" width="{_SPARK_W}" height="{_SPARK_H}" role="img" '
        f'aria-label="{text}" preserveAspectRatio="none"><path class="area" d="{area}"/><path class="line" d="{path}"/>'
        "</svg>"
    )


def over_time(series: Series, label: str, unit: str) -> Markup:
    """Draw a series with axes: values on the left, times below."""
    points = list(series)
    if len(points) < 2:
        return Markup('<p class="empty">The first points come in some seconds.</p>')
    text = escape(f"{label}: {number(points[-1][1])} {unit} now, {number(series.largest)} at most, times in UTC")
    return Markup("").join(_framed(points, _nice(series.largest), text, frame) for frame in _FRAMES)


def _framed(points: Sequence[tuple[float, float]], top: float, text: Markup, frame: _Frame) -> Markup:
    left, width, height = frame.left, frame.width - frame.left - 8, frame.height - _BOTTOM - _TOP
    path, area = _path(points, left, _TOP, width, height, top)
    lines = []
    for part in range(5):
        y = _TOP + height * part / 4
        value = escape(short_number(top * (4 - part) / 4))
        lines.append(
            f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
        )
    first, last = points[0][0], points[-1][0]
    end = frame.times - 1
    for part in range(frame.times):
        at = first + (last - first) * part / end
        anchor = "start" if not part else "end" if part == end else "middle"
        time_text = time.strftime("%H:%M:%S UTC" if part == end else "%H:%M:%S", time.gmtime(at))
        lines.append(
            f'<text class="tick" x="{left + width * part / end:.1f}" y="{frame.height - 6}" text-anchor="{anchor}">'
            f"{time_text}</text>"
        )
    return Markup(
        f'<svg class="chart {frame.name}" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{text}">'
        f'{"".join(lines)}<path class="area" d="{area}"/><path class="line" d="{path}"/></svg>'
    )


def bar(parts: Sequence[tuple[str, float]], whole: float, label: str, width: int = 160) -> Markup:
    """Draw the parts of a whole beside each other, each part in the colour of its class."""
    x, shapes = 0.0, []
    for name, value in parts:
        share = max(value, 0) / whole * width if whole > 0 else 0.0
        shapes.append(f'<rect class="{escape(name)}" x="{x:.1f}" y="0" width="{share:.1f}" height="10"/>')
        x += share
    return Markup(
        f'<svg class="bar" viewBox="0 0 {width} 10" width="{width}" height="10" role="img" '
        f'aria-label="{escape(label)}" '
        f'preserveAspectRatio="none"><rect class="rest" x="0" y="0" width="{width}" height="10"/>'
        f"{''.join(shapes)}</svg>"
    )


def _path(
    points: Sequence[tuple[float, float]], x: float, y: float, width: float, height: float, top: float
) -> tuple[str, str]:
    """Return the line through points, and the area below it."""
    first, last = points[0][0], points[-1][0]
    span = max(last - first, 1e-9)
    top = top or 1.0
    places = [(x + (at - first) / span * width, y + height - value / top * height) for at, value in points]
    line = "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    return line, f"{line} L{x + width:.1f} {y + height:.1f} L{x:.1f} {y + height:.1f} Z"


def _nice(largest: float) -> float:
    """Return a round number that is not smaller than `largest`."""
    if largest <= 0:
        return 4.0
    size = 10.0 ** math.floor(math.log10(largest))
    return next(step * size for step in (1, 2, 4, 5, 8, 10) if step * size >= largest)
