"""When a Fetch is answered, and when it goes on waiting (Apache Kafka: DelayedFetch.tryComplete).

Owns the rule. That `max_wait_ms` is over those know who wait (fetch.py, fetch_many.py), and that there is no partition
to be waited for those who read (fetch_attempt.py, fetch_many.py).
"""

from __future__ import annotations


def is_due(size: int, min_bytes: int, urgent: bool, may_wait: bool) -> bool:
    """Tell whether `size` bytes are worth an answer.

    `urgent` is what the client is to hear at once, or what waiting brings no more of.
    """
    return urgent or not may_wait or size >= min_bytes
