"""Answers that are known to differ, each with its reason. A declaration that no longer applies fails its test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Declared:
    """A difference: in exchanges of `sequence` whose name starts with `exchange`, below a path that contains `path`."""

    sequence: str
    exchange: str
    path: str
    reason: str

    def covers(self, sequence: str, line: str) -> bool:
        """Whether a line "exchange<path>: ..." is this difference."""
        return (
            sequence == self.sequence and line.startswith(self.exchange) and self.path in line.partition(": kbroker")[0]
        )


DECLARED: tuple[Declared, ...] = (
    Declared(
        "metadata",
        "neither name nor id",
        "",
        "Kafka 4.4.0 fails on a null name with a NullPointerException (UNKNOWN_SERVER_ERROR); kbroker answers that "
        "topic with INVALID_TOPIC_EXCEPTION and describes the cluster",
    ),
    Declared(
        "incremental-alter-configs",
        "bad operation",
        "",
        "Kafka 4.4.0 fails on an unknown operation for a topic with a NullPointerException (UNKNOWN_SERVER_ERROR); "
        "kbroker answers INVALID_REQUEST, as Kafka does for a broker's configs",
    ),
    *(
        Declared(
            "produce-bad-records",
            f"length {how}, {codec}",
            "",
            "Kafka 4.4.0 does not look at the size of a record inside a compressed batch and stores one that its own "
            "consumers cannot read; kbroker refuses it with INVALID_RECORD, as both do uncompressed",
        )
        for how in ("too short", "too long")
        for codec in ("gzip", "zstd")
    ),
    *(
        Declared(
            "produce-lying-records",
            f"{topic}: what is stored[{first + index}]",
            "",
            "offsets of uncompressed records that repeat, run back or have gaps: both take them, Kafka stores the "
            "records as they are, kbroker numbers them in their order, so that each can be read",
        )
        for topic, first in (("plain", 4), ("compacted", 3), ("stamped", 4), ("to-none", 4))
        for index in range(5)
    ),
    Declared(
        "produce-lying-lengths",
        "length ",
        "",
        "the same: Kafka 4.4.0 stores compressed records of any size that they claim",
    ),
    Declared(
        "consumer-group-of-odd-assignments",
        "a partition that does not exist",
        "",
        "Kafka 4.4.0 keeps partitions that do not exist when it converts a classic group, and its assignor fails on "
        "them (UNKNOWN_SERVER_ERROR) whenever a consumer member comes; kbroker drops them",
    ),
    Declared(
        "consumer-group-of-odd-assignments",
        "a partition that two have",
        "",
        "Kafka 4.4.0 fails with an IllegalStateException (UNKNOWN_SERVER_ERROR) when it converts a classic group in "
        "which two members have a partition; kbroker answers GROUP_ID_NOT_FOUND, as for all that cannot be converted",
    ),
    Declared(
        "consumer-group-refused-conversion",
        "the member that waited",
        "",
        "Kafka 4.4.0 answers JoinGroups that wait in a classic group REBALANCE_IN_PROGRESS when a consumer member is "
        "about to convert it, also where it is then refused; in kbroker they wait on, as nothing has happened",
    ),
    Declared(
        "client-metrics-configs",
        "match 'client_id=a{2,3}'",
        "error_message",
        "A comma ends a pattern, and the first is client_id=a{2: an error to Java, text to RE2, so that kbroker "
        "refuses the second",
    ),
    Declared(
        "share-dead-letters-large",
        "letters, nearly",
        "",
        "Kafka 4.4.0 drops a record, and those given up with it, if its copy and the headers together are too large "
        "for the dead letter topic; kbroker leaves out the copy",
    ),
    Declared(
        "share-dead-letters-large",
        "letters, packed",
        "",
        "Kafka 4.4.0 copies nothing from a compressed batch that unpacks to more than the topic's max.message.bytes; "
        "kbroker finds the record in it",
    ),
)
