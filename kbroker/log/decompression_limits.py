"""How much a batch that is looked into may come to, once it is unpacked: for appends, and for the cleaner."""

from __future__ import annotations

from typing import Final

_MIN_DECOMPRESSED: Final = 16 << 20
_MIN_RECORDS: Final = 1 << 20


def most_unpacked(max_message_bytes: int) -> tuple[int, int]:
    """Return how many bytes, and how many records, a batch may come to where its topic asks for a look.

    Kafka has neither of these bounds; without them a batch of some kilobytes could keep a broker busy for hours.
    """
    return max(_MIN_DECOMPRESSED, 100 * max_message_bytes), max(_MIN_RECORDS, max_message_bytes)
