"""The pages, by subject: what each asks, and which changes it makes.

Owns the list of all of them.
"""

from __future__ import annotations

from typing import Final

from kbroker.console.pages import (
    messages,
    overview,
    topic,
    topics,
)
from kbroker.console.parts import Action, Page, Raw

_SUBJECTS: Final = (overview, topics, topic, messages)
PAGES: Final[tuple[Page, ...]] = tuple(page for subject in _SUBJECTS for page in subject.PAGES)
ACTIONS: Final[tuple[Action, ...]] = tuple(each for subject in _SUBJECTS for each in subject.ACTIONS)
RAW: Final[tuple[Raw, ...]] = messages.RAW
