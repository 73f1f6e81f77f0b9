"""Changes of partition leaders by a requested election.

Owns which results of an election count as changes and which as failures. Never prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.admin.error_codes import code_error, error_text
from kbroker.admin.placement import Key
from kbroker.admin.told_everywhere import wait_for_preferred_leaders


def elect_leaders(
    admin: Any, names: Sequence[str] | Mapping[str, Sequence[int]] | None, *, unclean: bool
) -> tuple[list[Key], list[str]]:
    """Elect the preferred replicas, or with `unclean` any replica if none in sync is alive; of all topics by default.

    Returns the partitions with a new leader, and the failures; a partition that needs no election is in neither.
    """
    wanted = None if not names else dict(names) if isinstance(names, Mapping) else list(names)
    answer = admin.elect_leaders(int(unclean), wanted, raise_errors=False)
    failures: list[str] = []
    changed: list[Key] = []
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            error = code_error(each.error_code)
            if error is None:
                changed.append((topic.topic, each.partition_id))
            elif error.message != "ELECTION_NOT_NEEDED":
                failures.append(f"{topic.topic}-{each.partition_id}: {error_text(error, each.error_message)}")
    if not unclean:
        wait_for_preferred_leaders(admin, changed)
    return changed, failures
