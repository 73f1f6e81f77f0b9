"""A broker with an authorizer; its dispatcher receives requests from any user that a test names."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers.registry import APIS, CloseConnection, RequestContext
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.security.authorizer.acls import AclFilter, Entry, Pattern, PatternType, Permission
from kbroker.security.principal import Principal

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALICE, ADMIN = Principal("User", "alice"), Principal("User", "admin")
CLOSED = "closed"


class Served:
    """A node, and connections to it as somebody."""

    def __init__(self, node):
        self.node = node
        self._contexts = {}

    def context(self, principal):
        if principal not in self._contexts:
            context = RequestContext(self.node.services, "/192.0.2.1", "PLAINTEXT", ("127.0.0.1", 9092))
            context.principal = principal
            self._contexts[principal] = context
        return self._contexts[principal]

    async def ask(self, request, version, principal=ALICE):
        """Return the decoded answer, None for no answer, CLOSED."""
        cls = type(request)
        header = RequestHeader(cls.KEY, version, 7, "test")
        frame = encode(header, 2 if version in cls.FLEXIBLE else 1) + encode(request, version)
        out, spill = bytearray(), []
        dispatcher = self.node.server.dispatcher
        try:
            work = dispatcher.run(self.context(principal), memoryview(bytearray(frame)), out, spill)
            if work is not None:
                done = await run(work.steps)
                if done is None:
                    return None
                out, spill = done
        except CloseConnection:
            return CLOSED
        if not out:
            return None
        for at, piece in reversed(spill):
            out[at:at] = piece.view() if hasattr(piece, "view") else bytes(piece)
        tagged = version in cls.FLEXIBLE and cls.KEY != 18
        return decode(APIS[cls.KEY].response, version, memoryview(out)[9 if tagged else 8 :])

    async def allow(self, kind, name, operation, permission=Permission.ALLOW, pattern=PatternType.LITERAL):
        entry = Entry("User:alice", "*", operation, permission)
        await run(self.node.controller.create_acls({Pattern(kind, name, pattern): frozenset([entry])}))
        await self.settled()

    async def forbid_all(self):
        await run(self.node.controller.delete_acls([AclFilter()]))
        await self.settled()

    async def settled(self):
        published = self.node.controller.published()
        if published is not None:
            await published


async def run(steps):
    """Run work to its end, as a connection does; return its result."""
    sent = None
    error = None
    while True:
        try:
            waits = steps.throw(error) if error is not None else steps.send(sent)
        except StopIteration as end:
            return end.value
        sent = error = None
        if waits is not None:
            try:
                sent = await asyncio.wait_for(waits, 10)
            except Exception as failure:  # noqa: BLE001 - it is the work's
                error = failure


@contextlib.asynccontextmanager
async def serving(directory, **settings):
    config = BrokerConfig(
        {
            "log.dirs": str(directory),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "authorizer.class.name": STANDARD,
            "super.users": "User:admin;User:root",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    node = await BrokerNode.start(config)
    try:
        yield Served(node)
    finally:
        await node.stop()


def codes(value: Any) -> set[int]:
    """Return all error codes of an answer, wherever they stand."""
    if isinstance(value, list):
        return {code for each in value for code in codes(each)}
    found: set[int] = set()
    for name in getattr(type(value), "__slots__", ()):
        each = getattr(value, name)
        if name.endswith("error_code"):
            found.add(int(each))
        elif isinstance(each, list) or hasattr(type(each), "__slots__"):
            found |= codes(each)
    return found


def asynchronous(test):
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run_it(*args, **kwargs):
        return asyncio.run(test(*args, **kwargs))

    return run_it
