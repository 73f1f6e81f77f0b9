"""The client instances that request telemetry subscriptions or push metrics: their state, timing and receiver.

Owns the number of instances, their expiry, and Kafka's rules for both APIs (ClientMetricsManager,
ClientMetricsInstance). Never does I/O, and never reads the time: the caller passes the time, in ms of a monotonic
clock. The receiver decompresses pushes, so a receiver that ignores the content of pushes does not decompress them.

    asked          a client may request its subscriptions once an interval; also immediately after a push that was
                   refused for its subscription id or codec, and after a change of subscriptions, because the client
                   then counts as new
    pushed         a client may push once an interval, and once after each request for its subscriptions, because
                   clients vary their first interval
    terminating    the client's last push may be early; any later push is refused
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kbroker.config.client_match import CLIENT_INSTANCE_ID
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.clients import PushTelemetryRequest
from kbroker.protocol.wire import RESERVED_UUIDS, ZERO_UUID, uuid_text
from kbroker.telemetry.subscriptions import Subscriptions, Texts, Wanted, subscription_id


@dataclass(frozen=True, slots=True)
class Client:
    """The client that pushes, with the data that the broker knows. The client's own texts are unchanged."""

    instance_id: bytes
    """The client instance id: 16 bytes, which a broker has assigned."""
    client_id: str
    software_name: str
    software_version: str
    address: str
    principal: str


@dataclass(frozen=True, slots=True)
class Push:
    """A push: OpenTelemetry's MetricsData, compressed with a codec of protocol/compression.py."""

    codec: int
    data: bytes
    interval_ms: int
    """The expected time until the client's next push, in ms."""
    terminating: bool
    """Whether this is the client's last push."""
    most_bytes: int
    """The maximum size in bytes of the decompressed push."""


class Receiver(Protocol):
    """Processes the pushes of clients. A broker has at most one receiver."""

    def export(self, client: Client, push: Push) -> Awaitable[None]:
        """Process a push. The client receives the code of a raised ApiError, or INVALID_RECORD for other exceptions."""

    def forget(self, instance_id: bytes) -> None:
        """Remove a client that has announced its last push."""


MOST_INSTANCES: Final = 16_384
"""The maximum number of instances, as in Kafka.

At this number, a new instance replaces the instance with the longest inactivity.
"""
EXPIRY_MS: Final = 60 * 1000
"""The time in ms without a request after which an instance expires.

If three intervals of the instance are longer, the instance expires after three intervals.
"""
LONGEST_TEXT: Final = 1_000
"""The maximum number of compared characters of a client's own texts. Further characters are ignored."""
_MAY_ASK_AGAIN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_LAST_CODEC: Final = 4


def _known(instance_id: bytes, texts: Texts) -> Texts:
    """Return a client's texts as they are stored: long texts are cut."""
    short = {name: None if text is None else text[:LONGEST_TEXT] for name, text in texts.items()}
    return {**short, CLIENT_INSTANCE_ID: uuid_text(instance_id)}


class Instance:
    """The state of one client."""

    __slots__ = (
        "asked_ms", "expires_ms", "instance_id", "last_error", "pushed_ms", "subscription_id", "terminating", "texts",
        "wanted",
    )  # fmt: skip

    def __init__(self, instance_id: bytes, texts: Texts, wanted: Wanted) -> None:
        self.instance_id = instance_id
        self.texts = texts
        self.wanted = wanted
        self.subscription_id = subscription_id(wanted, instance_id)
        self.asked_ms = self.pushed_ms = -math.inf
        self.expires_ms = math.inf
        self.last_error = ErrorCode.NONE
        self.terminating = False

    def may_ask(self, now_ms: float) -> bool:
        """Whether the client may request its subscriptions now. If so, record the time of the request."""
        if now_ms - max(self.asked_ms, self.pushed_ms) < self.wanted.interval_ms:
            return False
        self.asked_ms = now_ms
        return True

    def may_push(self, now_ms: float) -> bool:
        """Whether the client may push now. If so, record the time of the push."""
        if self.asked_ms <= self.pushed_ms and now_ms - self.pushed_ms < self.wanted.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True


class ClientTelemetry:
    """All instances of one broker, its subscriptions, and the receiver of pushed metrics."""

    def __init__(self, max_bytes: int, new_id: Callable[[], bytes]) -> None:
        """Create the object. `max_bytes` is telemetry.max.bytes; `new_id` returns 16 random bytes."""
        self.max_bytes = max_bytes
        self._new_id = new_id
        self.subscriptions = Subscriptions()
        self.receiver: Receiver | None = None
        """The receiver of pushed metrics. If it is None, the APIs are not advertised."""
        self._instances: OrderedDict[bytes, Instance] = OrderedDict()  # the most recently active instance comes last
        self.unknown_subscriptions = self.throttled = self.exported = self.failed = 0
        """The counts of refused pushes, early requests, and pushes that the receiver accepted or could not process."""

    def __len__(self) -> int:
        return len(self._instances)

    def id_for(self, asked: bytes) -> bytes:
        """Return a client's id: the client's own id, or a new id."""
        if asked != ZERO_UUID:
            return asked
        made = self._new_id()
        while made in self._instances or made in RESERVED_UUIDS or uuid_text(made).startswith("-"):  # as in Kafka
            made = self._new_id()
        return made

    async def of(self, instance_id: bytes, texts: Texts, now_ms: float) -> tuple[Instance, bool]:
        """Return a client's instance, and whether this call created it.

        A new client, or a change of subscriptions, needs a new instance.
        """
        found = self._live(instance_id, now_ms)
        made = found is None or found.wanted.version < self.subscriptions.version
        if made:
            known = _known(instance_id, texts) if found is None else found.texts
            wanted = await self.subscriptions.wanted(known)
            other = self._instances.get(instance_id)
            if other is not None and other is not found and other.wanted.version == wanted.version:
                found, made = other, False  # another request of this client has created the instance meanwhile
            else:
                found = self._instances[instance_id] = Instance(instance_id, known, wanted)
                if len(self._instances) > MOST_INSTANCES:
                    self._instances.popitem(last=False)
        assert found is not None
        self._instances.move_to_end(instance_id)
        found.expires_ms = now_ms + max(EXPIRY_MS, 3 * found.wanted.interval_ms)
        return found, made

    def _live(self, instance_id: bytes, now_ms: float) -> Instance | None:
        found = self._instances.get(instance_id)
        if found is None or found.expires_ms > now_ms:
            return found
        del self._instances[instance_id]
        return None

    async def sweep(self, now_ms: float) -> None:
        """Remove expired instances."""
        for each in list(self._instances.values()):
            if each.expires_ms <= now_ms and self._instances.get(each.instance_id) is each:
                del self._instances[each.instance_id]
            await turn

    def forget(self, instance_id: bytes) -> None:
        """Remove an instance whose connection has ended."""
        self._instances.pop(instance_id, None)

    def asked(self, instance: Instance, now_ms: float) -> ErrorCode:
        """Return the error for a request for subscriptions."""
        if not instance.may_ask(now_ms) and instance.last_error not in _MAY_ASK_AGAIN:
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        instance.last_error = ErrorCode.NONE
        return ErrorCode.NONE

    def pushed(self, instance: Instance, request: PushTelemetryRequest, now_ms: float) -> ErrorCode:
        """Return the error for a push, from the checks that do not need its content."""
        error = self._error_of(instance, request, now_ms)
        instance.terminating = request.terminating
        instance.last_error = error
        return error

    def _error_of(self, instance: Instance, request: PushTelemetryRequest, now_ms: float) -> ErrorCode:
        if instance.terminating:
            return ErrorCode.INVALID_REQUEST
        if not instance.may_push(now_ms) and not request.terminating:
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if request.subscription_id != instance.subscription_id:
            self.unknown_subscriptions += 1
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if not 0 <= request.compression_type <= _LAST_CODEC:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(request.metrics) > self.max_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE
