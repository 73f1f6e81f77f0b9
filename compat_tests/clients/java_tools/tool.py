"""Runs one of Kafka's tools in its own JVM and returns what it printed, without the parts that always differ.

Owns the command line and the normalisation. Never judges an outcome.
"""

from __future__ import annotations

import re
from typing import Final

from compat_tests.harness.jvm import run_java
from compat_tests.harness.parts import fetch

_TOOLS: Final = "org.apache.kafka.tools"
CLASSES: Final = {
    "topics": f"{_TOOLS}.TopicCommand",
    "configs": "org.apache.kafka.tools.ConfigCommand",
    "console-producer": f"{_TOOLS}.ConsoleProducer",
    "console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "producer-perf": f"{_TOOLS}.ProducerPerformance",
    "consumer-perf": f"{_TOOLS}.ConsumerPerformance",
    "consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "groups": f"{_TOOLS}.GroupsCommand",
    "get-offsets": f"{_TOOLS}.GetOffsetShell",
    "delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "log-dirs": f"{_TOOLS}.LogDirsCommand",
    "cluster": f"{_TOOLS}.ClusterTool",
    "features": f"{_TOOLS}.FeatureCommand",
    "metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
}
_NOISE: Final = re.compile(r"^(SLF4J|WARNING: |\[.*\] (WARN|INFO))|^\s*$")
_REPLACED: Final = [
    (re.compile(r"\b(127\.0\.0\.1|localhost):\d+"), "<address>"),
    (re.compile(r"/127\.0\.0\.1"), "<host>"),
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: <id>"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"Cluster ID: \S+"), "Cluster ID: <id>"),
    (re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z "), ""),
    (re.compile(r"\s+"), " "),
]
_CONFIGS: Final = re.compile(r"Configs: (\S+)")
"""The tools keep configs in a HashMap: their order depends on the number of all keys, and kbroker has some more."""


def run(tool: str, *arguments: str, stdin: str = "", bootstrap: str = "") -> list[str]:
    """Run a tool; return its exit status and its lines, without noise and volatile parts."""
    server = ["--bootstrap-server", bootstrap] if bootstrap else []
    return run_class(CLASSES[tool], *server, *arguments, stdin=stdin)


def run_class(main: str, *arguments: str, stdin: str = "") -> list[str]:
    """Run a Java class of Kafka; return its exit status and its lines, without noise and volatile parts."""
    status, out, err = run_java(fetch("kafka"), main, *arguments, stdin=stdin)
    lines = [f"exit {status}"]
    for line in (out + "\n" + err).splitlines():
        if _NOISE.search(line) or line.lstrip().startswith(("at ", "...")):
            continue
        for pattern, name in _REPLACED:
            line = pattern.sub(name, line)
        line = _CONFIGS.sub(lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), line)
        lines.append(line.strip())
    return lines
