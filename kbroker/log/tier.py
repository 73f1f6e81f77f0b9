"""The part of one log in remote storage, as far as the log itself needs to know it (KIP-405).

Owns the two offsets that connect the tiers of a log: the first offset that readers can read, and the offset up to which
segments are copied. Never copies or reads: kbroker/tiers does that, and sets the offsets here.

    start_offset ........ copied segments ........ end_offset
                        log_start_offset .... local segments .... log_end_offset
"""

from __future__ import annotations


class Tier:
    """The remote part of a log. All offsets are absolute.

    The remote records are those from `start_offset` to `end_offset`.
    """

    __slots__ = ("end_offset", "is_led", "size", "start_offset")

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        """The first offset that readers may read, if it is below the local log's start."""
        self.end_offset = -1
        """The offset before which all segments are copied; -1 until this offset is known."""
        self.is_led = True
        """Whether this broker leads the partition. A follower gets the start offset from its leader only."""
        self.size = 0
        """The bytes of all readable segments in remote storage."""
