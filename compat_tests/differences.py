"""Where kbroker answers otherwise than Apache Kafka 4.4.0, each with the reason why that is right.

Owns the only list of them. A difference that is not here fails its scenario, and so does an entry that no longer
occurs.
"""

from __future__ import annotations

from typing import Final

from compat_tests.harness.compare import Difference

DECLARED: Final[tuple[Difference, ...]] = (
    Difference("*", "*", "*record.validation*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "*", "*confluent.*.schema.validation*", "keys of Confluent Server: records are checked"),
    Difference("*", "*", "*confluent.*.subject.name.strategy*", "keys of Confluent Server: records are checked"),
    Difference("*", "*", "*kbroker.schema.validation*", "keys of ours: how records are checked"),
    Difference("*", "*", "*delivery.delay.ms*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "*", "*view.source*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "*", "*view.filter*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "*", "*filter.index.headers*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "describing*", "*share.filter*", "a config of ours: the records that a share group gets"),
    Difference("*", "*", "*schedule.enable*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "*", "*schedule.target.topic*", "a key of ours, which DescribeConfigs and CreateTopics show"),
    Difference("*", "describing*", "*share.release.backoff*", "configs of ours: a pause between two tries of a record"),
    Difference("java-share", "share_consumer", "committed(3)", "the start passes aborted records once they are found"),
    Difference("*", "describing*", "*socket.receive.buffer.bytes*", "left to the system: two thirds of the work"),
)
