"""GetTelemetrySubscriptions, PushTelemetry, and the configs of subscriptions (KIP-714).

Neither broker has a receiver here, so nobody reads the pushed metrics: compat_tests/telemetry does.
"""

from __future__ import annotations

from typing import Any

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import sequence
from compat_tests.wire.exchanges.configs import APPEND, DELETE, METRICS, SET, SUBTRACT, describe, without_subscriptions
from compat_tests.wire.session import Wire
from kbroker.protocol.compression import compress
from kbroker.protocol.messages import configs as config_messages
from kbroker.protocol.messages.clients import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from kbroker.protocol.messages.configs import ListConfigResourcesRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest

INTERVAL_MS = 3_600_000
"""Long enough that every following request comes too early."""

LEAST_INTERVAL_MS = 100


def instance(number: int) -> bytes:
    """Return a client's own id: the same on both sides, because the subscription id depends on it."""
    return b"telemetry-test" + number.to_bytes(2, "big")


def get(number: int) -> GetTelemetrySubscriptionsRequest:
    return GetTelemetrySubscriptionsRequest(client_instance_id=instance(number))


def push(number: int, subscription_id: int, metrics: bytes = b"", codec: int = 0, **fields: Any) -> Any:
    return PushTelemetryRequest(
        client_instance_id=instance(number),
        subscription_id=subscription_id,
        compression_type=codec,
        metrics=metrics,
        **fields,
    )


class Subscriber:
    """Sets subscriptions, and waits until a new client receives them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._names: dict[str, None] = {}
        without_subscriptions(wire)
        self._probes = 0
        self._mark = LEAST_INTERVAL_MS

    def alter(self, name: str, *ops: Any, validate: bool = False) -> Any:
        entries = [config_messages.IncrementalConfig(key, op, value) for key, op, value in ops]
        resource = config_messages.IncrementalResource(METRICS, name, entries)
        return config_messages.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)

    def set(self, name: str, **configs: str) -> None:
        """Replace a subscription; all later requests see the new one."""
        ops: list[tuple[str, int, str | None]] = [
            (key, DELETE, None) for key in ("metrics", "interval.ms", "match") if key.replace(".", "_") not in configs
        ]
        ops += [(key.replace("_", ".") if key == "interval_ms" else key, SET, value) for key, value in configs.items()]
        answer = self.wire.quiet(self.alter(name, *ops), 1)
        assert answer.responses[0].error_code == 0, answer
        self.wire.until(lambda: self._is_set(name, configs), f"{name} {configs}")
        # The controller knows the subscription; the broker's telemetry may learn of it a moment later.
        self._names[name] = None
        self._mark += 1
        mark = (("interval.ms", SET, str(self._mark)), ("match", SET, "client_id=probe"))
        self.wire.quiet(self.alter("zz-mark", *mark), 1)
        with WireClient(self.wire.address, "probe") as probe:
            self.wire.until(lambda: self._probe(probe) == self._mark, "subscriptions to be followed")

    def _is_set(self, name: str, configs: dict[str, str]) -> bool:
        found = self.wire.quiet(describe(METRICS, name), 4).results[0].configs
        return {c.name.replace(".", "_"): c.value for c in found if c.config_source == 7} == configs

    def _probe(self, client: WireClient) -> int:
        self._probes += 1
        asked = GetTelemetrySubscriptionsRequest(client_instance_id=b"probe" + self._probes.to_bytes(11, "big"))
        found: int = client.ask(asked, 0).push_interval_ms
        return found

    def close(self) -> None:
        for name in [*self._names, "zz-mark"]:
            self.wire.quiet(self.alter(name, *((key, DELETE, None) for key in ("metrics", "interval.ms", "match"))), 1)


@sequence
def client_metrics_configs(wire: Wire) -> None:
    subscriber = Subscriber(wire)
    name = "sub-1"

    def ask(label: str, resource: str, *ops: Any, validate: bool = False) -> None:
        for v in (0, 1):
            wire.ask(label, subscriber.alter(resource, *ops, validate=validate), v)

    ask("validate only", name, ("interval.ms", SET, "100"), validate=True)
    for value in ("99", "100", "3600000", "3600001", "x", "", "-1"):
        ask(f"interval {value!r}", name, ("interval.ms", SET, value), validate=True)
    for value in ("", "*", "org.apache.kafka.", "a,b", "a,a", "a,,b", " a , b ", "*,a"):
        ask(f"metrics {value!r}", name, ("metrics", SET, value), validate=True)
    for value in (
        "", "client_id=a", "client_id=a.*,client_source_port=[0-9]+", "client_id", "client_id=", "=a", "a=b",
        "client_id=a=b", "client_id=a=", "client_id=[", "client_id=(", "client_id=*", " client_id = b ",
        "client_id=a,client_id=b", "client_software_name=apache-kafka-java", "client_software_version=4.*",
        "client_source_address=127.0.0.1", "client_instance_id=x", "CLIENT_ID=x", "client_id=a,", ",client_id=a",
        "client_id=a{2,3}", "client_id=\\d+",
    ):  # fmt: skip
        ask(f"match {value!r}", name, ("match", SET, value), validate=True)
    ask("unknown key", name, ("no.such", SET, "1"))
    ask("unknown key and bad value", name, ("interval.ms", SET, "1"), ("no.such", SET, "1"))
    ask("null", name, ("interval.ms", SET, None))
    ask("no name", "", ("interval.ms", SET, "1000"))
    ask("append to a number", name, ("interval.ms", APPEND, "5"))
    ask("delete what is not there", name, ("interval.ms", DELETE, None))
    ask("nothing", name)
    subscriber.set(name, metrics="a.,b.", interval_ms="1000")
    for v in range(1, 5):
        wire.ask("described", describe(METRICS, name, include_synonyms=True, include_documentation=True), v)
        wire.ask("described, without synonyms", describe(METRICS, name), v)
        wire.ask("described, a key", describe(METRICS, name, ["interval.ms", "no.such"]), v)
        wire.ask("described, not there", describe(METRICS, "no-such", include_synonyms=True), v)
    wire.ask("validated appends", subscriber.alter(name, ("metrics", APPEND, "c."), validate=True), 1)
    wire.ask("validated subtracts", subscriber.alter(name, ("metrics", SUBTRACT, "a."), validate=True), 1)
    subscriber.set("<default>", metrics="*")
    subscriber.set("a/b c", match="client_id=x")

    def listed() -> list[str]:
        answer = wire.quiet(ListConfigResourcesRequest(), 0)
        return sorted(each.resource_name for each in answer.config_resources)

    wire.until(lambda: len(listed()) == 4, "all to be listed")
    wire.record("listed", 0, listed())
    wire.ask("listed with types", ListConfigResourcesRequest(resource_types=[METRICS]), 1)
    entries = [config_messages.AlterableConfig("interval.ms", "2000")]
    replace = config_messages.AlterConfigsRequest(
        resources=[config_messages.AlterConfigsResource(METRICS, name, entries)]
    )
    for v in range(3):
        wire.ask("replace", replace, v)
    wire.until(
        lambda: (
            [c.value for c in wire.quiet(describe(METRICS, name), 4).results[0].configs if c.config_source == 7]
            == ["2000"]
        ),
        "it to be replaced",
    )
    subscriber.close()
    wire.until(lambda: not listed(), "none to be left")
    wire.ask("none left", ListConfigResourcesRequest(), 0)


@sequence
def telemetry_of_clients(wire: Wire) -> None:
    subscriber = Subscriber(wire)
    subscriber.set(
        "long", metrics="org.apache.kafka.producer.,org.apache.kafka.consumer.", interval_ms=str(INTERVAL_MS)
    )
    client = wire.client("app-1")

    def ask(label: str, request: Any, by: WireClient = client) -> Any:
        return wire.ask(label, request, 0, by)

    # --- one client's way
    number = ask("first", get(1)).subscription_id
    ask("asks again at once", get(1))
    ask("pushes by another number", push(1, number + 1, b"x"))
    ask("asks after that", get(1))
    ask("pushes after that", push(1, number, b"x"))
    ask("pushes again at once", push(1, number, b"x"))
    ask("asks after a push that was too early", get(1))
    ask("ends early", push(1, number, b"x", terminating=True))
    ask("pushes after its end", push(1, number, b"x"))
    ask("which it takes back", push(1, number, b"x"))
    ask("ends again", push(1, number, b"x", terminating=True))
    ask("ends after its end", push(1, number, b"x", terminating=True))
    ask("asks after its end", get(1))

    # --- pushes that are refused
    ask("never asked", push(2, 7, b"x"))
    ask("and asks then", get(2))
    for codec in (5, -1, 127):
        number = ask(f"asks before codec {codec}", get(20 + codec)).subscription_id
        ask(f"codec {codec}", push(20 + codec, number, b"x", codec))
        ask(f"asks after codec {codec}", get(20 + codec))
    for codec in range(5):
        number = ask(f"asks before good codec {codec}", get(300 + codec)).subscription_id
        ask(f"good codec {codec}", push(300 + codec, number, compress(codec, b"not what it should be"), codec))
        number = ask(f"asks before broken codec {codec}", get(400 + codec)).subscription_id
        ask(f"broken codec {codec}", push(400 + codec, number, b"x", codec))
        ask(f"asks after broken codec {codec}", get(400 + codec))
    number = ask("asks before it is too large", get(4)).subscription_id
    ask("too large", push(4, number, bytes(1_048_577)))
    ask("asks after it was too large", get(4))
    number = ask("asks before it is as large as it may be", get(5)).subscription_id
    ask("as large as it may be", push(5, number, bytes(1_048_576)))
    for codec in range(1, 5):
        for more in (0, 1):
            sender = 500 + 2 * codec + more
            number = ask(f"asks before it unpacks to its limit and {more}, codec {codec}", get(sender)).subscription_id
            packed = compress(codec, bytes(1_048_576 + more))
            ask(f"unpacks to its limit and {more}, codec {codec}", push(sender, number, packed, codec))
    number = ask("asks before nothing", get(6)).subscription_id
    ask("nothing", push(6, number))
    for label, bad in (("zero", bytes(16)), ("one", bytes(15) + b"\1")):
        request = push(7, 1, b"x")
        request.client_instance_id = bad
        ask(f"a push of {label}", request)
    request = get(7)
    request.client_instance_id = bytes(15) + b"\1"
    ask("one asks", request)
    made = wire.main.ask(GetTelemetrySubscriptionsRequest(), 0)
    wire.record("an id is made", 0, {"error": made.error_code, "made": bytes(made.client_instance_id) != bytes(16)})

    # --- an instance ends with the connection by which it came
    with WireClient(wire.address, "app-2") as other:
        ask("by a connection of its own", get(8), other)
        ask("and by another", get(8))
    wire.until(lambda: wire.quiet(get(8), 0).error_code == 0, "the instance to have gone with its connection")

    # --- what is wanted of whom
    ask("before subscriptions change", get(9))
    subscriber.set("short", metrics="org.apache.kafka.admin.", interval_ms="60000", match="client_id=app-1")
    number = ask("after they have changed", get(9)).subscription_id
    ask("pushes by the new number", push(9, number, b"x"))
    ask("another who is not meant", get(10), wire.client("app-12"))
    ask("another without a client id", get(11), wire.client(None))
    subscriber.set("short", metrics="*", match="client_id=app-[12]")
    ask("all metrics", get(12))
    ask("the default interval is shorter", get(13))
    subscriber.set("long", metrics="")
    subscriber.set("short", match="client_id=nobody")
    ask("no metrics", get(14))
    many = [f"org.apache.kafka.metric.{n}." for n in range(40)]
    subscriber.set("long", metrics=",".join(many), interval_ms="1000")
    ask("many metrics", get(15))
    subscriber.set("short", metrics=",".join([*many[::-3], "Aa", "BB", "AaAa", "BBBB", "AaBB"]), match="")
    ask("overlapping ones", get(16))

    # --- by software, which ApiVersions tells
    with WireClient(wire.address, "s") as named, WireClient(wire.address, "s") as silent:
        named.ask(ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.4.0"), 4)
        for number, selector in enumerate((
            "client_software_name=apache-kafka-java", "client_software_name=apache", "client_software_version=4[.].*",
            "client_software_name=unknown", "client_software_version=unknown", "client_source_address=127[.]0[.]0[.]1",
            "client_source_address=/127.*", "client_source_port=[0-9]+", "client_source_port=1",
            f"client_instance_id={'.' * 22}", "client_instance_id=dGVsZW1ldHJ5.*", "client_id=s,client_source_port=.*",
            "client_id=s,client_source_port=x",
        )):  # fmt: skip
            subscriber.set("short", metrics="short.", match=selector)
            subscriber.set("long", metrics="long.")
            ask(f"named, {selector}", get(1000 + number), named)
            ask(f"silent, {selector}", get(2000 + number), silent)
    subscriber.close()
