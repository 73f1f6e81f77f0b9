"""The pages, by subject: their requests and their changes.

Owns the list of all pages, with their actions.
"""

from __future__ import annotations

from typing import Final

from kbroker.console import changes
from kbroker.console.page_and_action import Action, Page, Raw
from kbroker.console.pages import (
    access,
    cluster,
    configs,
    deadletters,
    groups,
    messages,
    overview,
    quotas,
    reset,
    schedules,
    subjects,
    topic,
    topics,
    transactions,
)

_SUBJECTS: Final = (
    overview, topics, topic, messages, groups, reset, deadletters, schedules, transactions, cluster, configs,
    access, quotas, subjects,
)  # fmt: skip
PAGES: Final[tuple[Page, ...]] = tuple(page for subject in _SUBJECTS for page in subject.PAGES)
ACTIONS: Final[tuple[Action, ...]] = (*changes.ACTIONS, *(each for subject in _SUBJECTS for each in subject.ACTIONS))
RAW: Final[tuple[Raw, ...]] = messages.RAW
