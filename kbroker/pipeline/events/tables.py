"""The precomputed parts of the events of generator.py: pages, pauses, delays, the course of a day.

Owns the distributions and their parameters. A draw at run time needs one random number and one table lookup. The
results of all functions depend only on their arguments, which include a random.Random.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
BREAK_MS: Final = 30 * MINUTE_MS
"""The break between visits, in ms. A pause within a visit is shorter, and a pause between visits is longer."""
REST_MS: Final = (HOUR_MS, 4 * HOUR_MS)
"""The bounds of the absence after a visit, except for visitors who return just after the break."""
LATE_MS: Final = ((MINUTE_MS, 10 * MINUTE_MS), (10 * MINUTE_MS, 6 * HOUR_MS))
"""The bounds of the delays of late events. Half of the events are in the first range, half in the second."""
RESEND_MS: Final = ((1_000, MINUTE_MS), (MINUTE_MS, 2 * HOUR_MS))
"""The two ranges of the extra delays of duplicates. Most delays are in the first range."""
TOP_DELAY_MS: Final = 10_000
"""The maximum delay of an event that is not late."""

PAGES: Final = 4096
STEPS: Final = 16_384
DELAYS: Final = 4096
_SITE: Final = "https://www.shop.example"
_ENDING: Final = 0.12  # share of events after which the visitor leaves
_RETURNING: Final = 0.01  # share of events after which the visitor returns just after the break
_LINGERING: Final = 0.01  # share of events after which the visitor continues just before the break
_NEAR_MS: Final = 2 * MINUTE_MS

_CATEGORIES: Final = ("garden", "kitchen", "lighting", "office", "outdoor", "bedroom", "storage", "workshop")
_MAKES: Final = ("oak", "steel", "linen", "bamboo", "walnut", "copper", "cotton", "slate", "rattan", "enamel")
_THINGS: Final = ("table", "lamp", "chair", "shelf", "kettle", "bench", "basket", "mirror", "cushion", "ladder")
_ELSEWHERE: Final = (
    None,
    None,
    None,
    "https://www.search.example/results?q=furniture",
    "https://www.search.example/results?q=shop+garden+table",
    "https://news.example/home/2026/ten-small-kitchens",
    "https://mail.example/newsletter/autumn",
    "https://blog.example/living-with-less",
)
_HOURS: Final = (24, 16, 11, 9, 9, 13, 24, 45, 72, 90, 98, 102, 104, 100, 98, 98, 99, 103, 112, 124, 126, 108, 76, 45)
"""The relative traffic of the site in each hour of a day, in UTC."""

LANDING, BROWSING, BUYING = range(3)


class Page(NamedTuple):
    """The JSON of an event without its id, visitor, time and referrer. Also the event's effect on the next event."""

    fragment: str
    as_referrer: str
    state: int


def elsewhere() -> tuple[str, ...]:
    """Return the external referrers, as JSON."""
    return tuple(json.dumps(each) for each in _ELSEWHERE)


def page_tables(random: Random) -> tuple[list[Page], ...]:
    """Return the pages for an arrival, for browsing, and for a visitor with items in the cart."""
    mixes = {
        LANDING: {"page_view": 92, "search": 8},
        BROWSING: {"page_view": 70, "search": 15, "add_to_cart": 15},
        BUYING: {"page_view": 50, "search": 12, "add_to_cart": 13, "purchase": 25},
    }
    tables = []
    for state, mix in mixes.items():
        kinds = random.choices(list(mix), list(mix.values()), k=PAGES)
        tables.append([_page(random, state, kind) for kind in kinds])
    return tuple(tables)


def _page(random: Random, state: int, kind: str) -> Page:
    category, make, thing = random.choice(_CATEGORIES), random.choice(_MAKES), random.choice(_THINGS)
    number = 1000 + int(math.exp(random.random() * math.log(9000)))
    after = BROWSING if state == LANDING else state
    url = f"/products/{category}/{make}-{thing}-{number}"
    if kind == "search":
        url = f"/search?q={make}+{thing}&in={category}&page={random.randrange(1, 5)}"
    elif kind == "add_to_cart":
        url, after = f"/cart/add?product={make}-{thing}-{number}", BUYING
    elif kind == "purchase":
        url, after = f"/checkout/complete?items={random.randrange(1, 6)}", BROWSING
    elif random.random() < 0.3:
        url = f"/categories/{category}?sort=popular&page={random.randrange(1, 9)}"
    return Page(f'"type": "{kind}", "url": "{url}", "referrer": ', f'"{_SITE}{url}"', after)


def step_table(random: Random) -> list[int]:
    """Return the steps after an event: 0 for the end, else the ms to the next event.

    A step above BREAK_MS begins a visit.
    """
    return [_step(random) for _ in range(STEPS)]


def _step(random: Random) -> int:
    chance = random.random()
    if chance < _ENDING:
        return 0
    if chance < _ENDING + _RETURNING + _LINGERING:
        away = log_uniform(random, (1, _NEAR_MS))
        return BREAK_MS + away if chance < _ENDING + _RETURNING else BREAK_MS - away
    think = random.lognormvariate(math.log(20_000), 1.1)
    return int(min(max(think, 800), 20 * MINUTE_MS))


def delay_table(random: Random) -> list[int]:
    """Return the delays of events that are not late, in ms."""
    return [int(min(max(random.lognormvariate(math.log(90), 0.8), 1), TOP_DELAY_MS)) for _ in range(DELAYS)]


def log_uniform(random: Random, bounds: tuple[int, int]) -> int:
    """Draw from [low, high], log-uniformly: every order of magnitude is equally likely."""
    low, high = bounds
    return min(int(low * (high / low) ** random.random()), high)


def log_uniform_mean(bounds: tuple[int, int]) -> float:
    """Return the mean of `log_uniform`."""
    low, high = bounds
    return (high - low) / math.log(high / low)


def busyness(ms: float) -> float:
    """Return the site's traffic at a time (epoch ms), relative to the mean of a day."""
    hours = ms % DAY_MS / HOUR_MS - 0.5  # each figure is for the middle of its hour
    before = math.floor(hours)
    share = hours - before
    between = _HOURS[before % 24] * (1 - share) + _HOURS[(before + 1) % 24] * share
    return between * 24 / sum(_HOURS)


BUSIEST: Final = max(_HOURS) * 24 / sum(_HOURS)
