"""For which topics a leader may be elected that is not in sync: those that would rather lose records than be without.

Owns the question, which the topic's own config answers, else the broker's; where the topic's cannot be read, none may.
Never elects (elections.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kbroker.controller.cluster.pacing import all_of
from kbroker.controller.cluster.term import Term
from kbroker.controller.znodes import CONFIG, Unreadable, decode_configs, read

log = logging.getLogger(__name__)

UNCLEAN = "unclean.leader.election.enable"


async def unclean_topics(term: Term, topics: Collection[str]) -> set[str]:
    """Return those topics that would rather lose records than be without a leader."""
    ordered = list(topics)
    allowed = await all_of(ordered, lambda topic: _is_unclean(term, topic))
    return {topic for topic, unclean in zip(ordered, allowed, strict=True) if unclean}


async def _is_unclean(term: Term, topic: str) -> bool:
    path = f"{CONFIG}/topics/{topic}"
    found = await term.tree.get(path)
    if found is None:
        return term.config.unclean_leader_election
    try:
        own = read(path, found.data, decode_configs).get(UNCLEAN)
    except Unreadable as error:
        log.error("%s", error)
        return False
    return term.config.unclean_leader_election if own is None else own.lower() == "true"
