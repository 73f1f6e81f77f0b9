"""Remedies for failures: the advice that follows an error message.

Owns the remedy of each failure. The name of Kafka's error at the end of a message selects the remedy. If there is no
such name, the message's text selects it. The required ACL depends on the verb. Never sends a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

_NAME: Final = re.compile(r"\(([A-Z][A-Z_]+)\)$")
_LINES: Final[Sequence[tuple[str, str]]] = (
    (
        r"^no broker answers at .*: (connection refused|no answer|no route to host|network is unreachable)",
        "does one run there (`kbroker start`), and is the address right (-b HOST:PORT)?",
    ),
    (r"^no broker answers at .*unknown host", "is the address right (-b HOST:PORT)?"),
    (
        r"^no broker answers at \S+$",
        "what listens there does not answer as a broker: is it another program's port, or one of a listener that asks"
        " for a login (-X security.protocol=SASL_PLAINTEXT)?",
    ),
    (
        r"^no broker answers at \S+ over TLS$",
        "does it ask for a login (-X security.protocol=SASL_SSL), or for a certificate"
        " (-X ssl.certificate.location=FILE -X ssl.key.location=FILE)?",
    ),
    (r"^broker \d+ is gone, ", "`kbroker broker list` shows which brokers there are"),
    (
        r": Cannot update these configs dynamically: ",
        "it counts from a start on: the broker's file of settings has it, or --set of `kbroker start`",
    ),
    (r" speaks TLS, and security.protocol is SASL", "-X security.protocol=SASL_SSL, or --profile"),
    (r" speaks TLS, and security.protocol is ", "-X security.protocol=SSL, or SASL_SSL where it asks for a login"),
    (r" does not speak TLS, ", "-X security.protocol=PLAINTEXT, or SASL_PLAINTEXT where it asks for a login"),
    (
        r"^this cluster (does not serve \w*Share\w*|serves no share groups)$",
        "share groups need share.version 1 or higher: `kbroker feature list` shows it, and"
        " `kbroker feature upgrade share.version=1` raises it",
    ),
    (
        r"^ShareGroupHeartbeat .*\(GROUP_ID_NOT_FOUND\)$",
        "is the group of another type? `kbroker group list` shows it",
    ),
    (r"^\d+ dead letters? cannot be replayed, ", "--skip leaves such dead letters out"),
    (
        r"^cannot describe group .*\(GROUP_AUTHORIZATION_FAILED\)$",
        "an administrator of ACLs allows it: `kbroker acl add --allow-principal User:NAME --operation DescribeConfigs"
        " --group GROUP`",
    ),
    (r"^Unauthorized \(401\)$", "its logins are users and passwords: --registry http://USER:PASSWORD@HOST:PORT"),
    (r"^http://\S+ is no schema registry: ", "is the address right, and does it speak TLS (https://)?"),
    (
        r": a view needs the right to read its source .*\(TOPIC_AUTHORIZATION_FAILED\)$",
        "an administrator of ACLs allows it: `kbroker acl add --allow-principal User:NAME --operation Read"
        " --topic SOURCE`",
    ),
    (r" is no dead letter: ", "`kbroker record delete` deletes records of every topic"),
    (r"^the certificate of .* is not accepted", "-X ssl.ca.location=FILE names whom to trust"),
)
_BY_NAME: Final[Mapping[str, str]] = {
    "COORDINATOR_LOAD_IN_PROGRESS": "try again in a moment",
    "COORDINATOR_NOT_AVAILABLE": "try again in a moment; the error stays while fewer brokers live than"
    " offsets.topic.replication.factor says",
    "DELEGATION_TOKEN_AUTH_DISABLED": "the brokers need a delegation.token.secret.key for tokens",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "tokens are created over SASL or TLS, and not by a client with a token",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "no replica in sync lives; --unclean elects others, and may lose records",
    "GROUP_SUBSCRIBED_TO_TOPIC": "stop the members that read it; `kbroker group describe GROUP --members` shows where",
    "INCONSISTENT_GROUP_PROTOCOL": "`kbroker group list` shows the group's type; members of another cannot join",
    "INVALID_REPLICATION_FACTOR": "`kbroker broker list` shows how many brokers live",
    "KAFKA_STORAGE_ERROR": "a disk of the broker is full or fails; `kbroker broker describe ID` shows its room",
    "MESSAGE_TOO_LARGE": "max.message.bytes of the topic says how large a batch may be",
    "NON_EMPTY_GROUP": "stop its members first; `kbroker group describe GROUP --members` shows where they run",
    "NOT_ENOUGH_REPLICAS": "`kbroker topic describe --under-min-isr-partitions` shows which replicas are missing",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "`kbroker topic describe --under-min-isr-partitions` shows which are missing",
    "NO_REASSIGNMENT_IN_PROGRESS": "`kbroker topic reassign` lists what is being moved",
    "OFFSET_OUT_OF_RANGE": "`kbroker topic offsets TOPIC --time earliest` shows where partitions begin",
    "POLICY_VIOLATION": "a rule of the cluster refuses it (create.topic.policy.class.name and its like, or a bound of"
    " the broker): its administrator knows the rule, and can change it",
    "PREFERRED_LEADER_NOT_AVAILABLE": "the first replica does not live, or is not in sync: `kbroker topic describe`",
    "REASSIGNMENT_IN_PROGRESS": "`kbroker topic reassign` lists what is being moved, --cancel ends it",
    "SECURITY_DISABLED": "ACLs need brokers with an authorizer.class.name",
    "THROTTLING_QUOTA_EXCEEDED": "`kbroker quota list` shows the limits; try again in a moment",
    "TOPIC_ALREADY_EXISTS": "--if-not-exists takes it as it is, `kbroker topic alter` changes it",
    "TOPIC_DELETION_DISABLED": "the brokers have delete.topic.enable=false",
    "UNKNOWN_TOPIC_OR_PARTITION": "`kbroker topic list` shows the topics there are",
}
_OF_VERBS: Final[Mapping[tuple[str, str], str]] = {
    (
        "record delete",
        "POLICY_VIOLATION",
    ): "a topic that is only compacted keeps its records, and a view has none of its own",
}
_READ, _WRITE, _DESCRIBE = "--operation Read", "--operation Write", "--operation Describe"
_OF_TOPICS: Final[Mapping[str, str]] = {
    "produce": "--producer",
    "consume": "--consumer --group GROUP",
    "deadletter list": _READ,
    "deadletter show": _READ,
    "deadletter replay": "--operation Read --operation Write",
    "deadletter purge": "--operation Delete",
    "record find": _READ,
    "record delete": "--operation Delete",
    "perf produce": "--producer",
    "perf consume": "--consumer --group GROUP",
    "perf latency": "--operation Read --operation Write",
    "group reset": _READ,
    "group delete-offsets": _READ,
    "topic create": "--operation Create",
    "topic alter": "--operation Alter --operation AlterConfigs",
    "topic delete": "--operation Delete",
    "config describe": "--operation DescribeConfigs",
    "config set": "--operation AlterConfigs",
    "config unset": "--operation AlterConfigs",
    "transaction producers": _READ,
}
_OF_GROUPS: Final[Mapping[str, str]] = {
    "config set": "--operation AlterConfigs",
    "config unset": "--operation AlterConfigs",
    "consume": _READ,
    "deadletter replay": _READ,
    "group reset": _READ,
    "group delete": "--operation Delete",
    "group delete-offsets": "--operation Delete",
    "perf consume": _READ,
}
_OF_THE_CLUSTER: Final[Mapping[str, str]] = {
    "produce": "--producer --topic TOPIC",
    "perf produce": "--producer --topic TOPIC",
    "topic create": "--operation Create",
    "topic elect": "--operation Alter",
    "topic reassign": "--operation Alter",
    "broker drain": "--operation Alter",
    "broker unregister": "--operation Alter",
    "acl add": "--operation Alter",
    "acl remove": "--operation Alter",
    "user add": "--operation Alter",
    "user remove": "--operation Alter",
    "quota set": "--operation AlterConfigs",
    "quota remove": "--operation AlterConfigs",
    "quota list": "--operation DescribeConfigs",
    "config list": "--operation DescribeConfigs",
    "config describe": "--operation DescribeConfigs",
    "config set": "--operation AlterConfigs",
    "config unset": "--operation AlterConfigs",
    "feature upgrade": "--operation Alter",
    "feature downgrade": "--operation Alter",
    "feature disable": "--operation Alter",
    "client-metrics create": "--operation AlterConfigs",
    "client-metrics alter": "--operation AlterConfigs",
    "client-metrics delete": "--operation AlterConfigs",
    "client-metrics list": "--operation DescribeConfigs",
    "client-metrics describe": "--operation DescribeConfigs",
    "transaction abort": "--operation ClusterAction",
}
_OF_IDS: Final[Mapping[str, str]] = {
    "transaction terminate": _WRITE,
    "perf produce": _WRITE,
    "deadletter replay": _WRITE,
}
_RIGHTS: Final[Mapping[str, tuple[str, Mapping[str, str], str]]] = {
    "TOPIC_AUTHORIZATION_FAILED": ("--topic TOPIC", _OF_TOPICS, _DESCRIBE),
    "GROUP_AUTHORIZATION_FAILED": ("--group GROUP", _OF_GROUPS, _DESCRIBE),
    "CLUSTER_AUTHORIZATION_FAILED": ("--cluster", _OF_THE_CLUSTER, _DESCRIBE),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": ("--transactional-id ID", _OF_IDS, _DESCRIBE),
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": ("--delegation-token ID", {}, _DESCRIBE),
}
"""By the error's name: the resource's ACL option, the rights that some verbs need, and the right for other verbs."""


def with_remedy(text: str, arguments: Sequence[str]) -> str:
    """Return the lines of a failure, each with a remedy if one is known."""
    verb = verb_of(arguments)
    return "\n".join(_with_remedy(line, verb) for line in text.split("\n"))


def verb_of(arguments: Sequence[str]) -> str:
    """Return the verb at the beginning of a command line, with its second word if it has one ("topic create")."""
    words = [each for each in arguments if each != "--debug"][:2]
    return " ".join(words[: next((at for at, each in enumerate(words) if each.startswith("-")), len(words))])


def _with_remedy(line: str, verb: str) -> str:
    remedy = _remedy(line, verb)
    return line if remedy is None else f"{line}; {remedy}"


def _remedy(line: str, verb: str) -> str | None:
    for pattern, remedy in _LINES:
        if re.search(pattern, line.removeprefix("kbroker: ")):
            return remedy
    found = _NAME.search(line)
    if found is None:
        return None
    name = found[1]
    if name in _RIGHTS:
        thing, needed, usual = _RIGHTS[name]
        right = needed.get(verb, needed.get(verb.partition(" ")[0], usual))
        if "TOPIC" not in right:  # the option of such a right already names its topic
            right = f"{right} {thing}"
        return f"an administrator of ACLs allows it: `kbroker acl add --allow-principal User:NAME {right}`"
    return _OF_VERBS.get((verb, name)) or _BY_NAME.get(name)
