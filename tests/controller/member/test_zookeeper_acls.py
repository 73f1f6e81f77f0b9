"""ACLs on ZooKeeper: stored as AclAuthorizer stores them, received by every broker, not lost in concurrent changes."""

from __future__ import annotations

import asyncio
import json

import pytest

from kbroker.controller.member.zookeeper_acls import ZooKeeperAcls
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import Create, Delete, SetData
from kbroker.controller.znodes import Unreadable
from kbroker.protocol.errors import ErrorCode
from kbroker.security.authorizer.acls import Entry, Operation, Pattern, PatternType, Permission, ResourceType

from .world import PATIENCE_S, FixedClock, cut_once, until

T, G = ResourceType.TOPIC, ResourceType.GROUP
ORDERS = Pattern(T, "orders")
PREFIXED = Pattern(ResourceType.TRANSACTIONAL_ID, "tx:", PatternType.PREFIXED)


def entry(name="alice", operation=Operation.READ, permission=Permission.ALLOW):
    return Entry(f"User:{name}", "*", operation, permission)


class Broker:
    def __init__(self, ensemble, clock=None):
        self.tree = ensemble.connect()
        self.acls = ZooKeeperAcls(self.tree, clock or FixedClock())
        self.heard = []

    async def begin(self):
        await self.acls.load()
        self.acls.follow(self.heard.append)
        return self


def run(scenario):
    async def inside():
        async with asyncio.timeout(PATIENCE_S):
            await scenario(MemoryEnsemble())

    asyncio.run(inside())


def test_they_stand_where_kafka_has_them():
    async def scenario(ensemble):
        broker = await Broker(ensemble).begin()
        await broker.acls.add(ORDERS, frozenset([entry()]))
        await broker.acls.add(
            PREFIXED, frozenset([entry(operation=Operation.IDEMPOTENT_WRITE, permission=Permission.DENY)])
        )
        node, _ = ensemble.read("/kafka-acl/Topic/orders")
        assert json.loads(node.data) == {
            "version": 1,
            "acls": [{"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"}],
        }
        node, _ = ensemble.read("/kafka-acl-extended/prefixed/TransactionalId/tx:")
        assert json.loads(node.data)["acls"][0] == {
            "principal": "User:alice", "permissionType": "Deny", "operation": "IdempotentWrite", "host": "*",
        }  # fmt: skip
        node, _ = ensemble.read("/kafka-acl-changes/acl_changes_0000000000")
        assert node.data == b"TOPIC:orders"
        node, _ = ensemble.read("/kafka-acl-extended-changes/acl_changes_0000000000")
        assert json.loads(node.data) == {
            "version": 1, "resourceType": "TRANSACTIONAL_ID", "name": "tx:", "patternType": "PREFIXED",
        }  # fmt: skip
        await broker.acls.remove(ORDERS, frozenset([entry()]))
        assert ensemble.read("/kafka-acl/Topic/orders") is None
        assert set(broker.acls.known) == {PREFIXED}

    run(scenario)


def test_every_broker_hears_of_a_change_and_finds_it_at_its_start():
    async def scenario(ensemble):
        one, two = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        await one.acls.add(ORDERS, frozenset([entry()]))
        await two.acls.add(PREFIXED, frozenset([entry("bob")]))
        expected = {ORDERS: frozenset([entry()]), PREFIXED: frozenset([entry("bob")])}
        await until(lambda: one.acls.known == two.acls.known == expected)
        assert one.heard[-1] == two.heard[-1] == expected
        three = await Broker(ensemble).begin()
        assert three.acls.known == expected
        await three.acls.remove(ORDERS, frozenset([entry()]))
        await until(lambda: ORDERS not in one.acls.known and ORDERS not in two.acls.known)

    run(scenario)


def test_what_could_not_be_read_is_read_once_zookeeper_is_back():
    async def scenario(ensemble):
        one, two = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        await two.acls.add(ORDERS, frozenset([entry()]))
        await until(lambda: ORDERS in one.acls.known)
        cut = cut_once(one.tree, "/kafka-acl/Topic/orders")
        await two.acls.remove(ORDERS, frozenset([entry()]))
        await cut.wait()
        assert ORDERS in one.acls.known
        one.tree.heal()
        await until(lambda: ORDERS not in one.acls.known)

    run(scenario)


def test_changes_at_the_same_time_lose_nothing():
    async def scenario(ensemble):
        brokers = [await Broker(ensemble).begin() for _ in range(3)]
        entries = [entry(str(number)) for number in range(30)]
        await asyncio.gather(
            *(brokers[number % 3].acls.add(ORDERS, frozenset([each])) for number, each in enumerate(entries))
        )
        expected = {ORDERS: frozenset(entries)}
        await until(lambda: all(broker.acls.known == expected for broker in brokers))
        await asyncio.gather(
            *(brokers[number % 3].acls.remove(ORDERS, frozenset([each])) for number, each in enumerate(entries))
        )
        await until(lambda: all(broker.acls.known == {} for broker in brokers))

    run(scenario)


def test_what_java_brokers_write_is_read():
    async def scenario(ensemble):
        broker = await Broker(ensemble).begin()
        java = ensemble.connect()
        acls = (
            b'{"version":1,"acls":[{"principal":"User:CN=a,O=b","permissionType":"Allow","operation":"DescribeConfigs",'
            b'"host":"192.0.2.1"},{"principal":"User:*","permissionType":"Deny","operation":"All","host":"*"}]}'
        )
        await java.commit([Create("/kafka-acl/Group/a group", acls)])
        await java.commit([Create("/kafka-acl-changes/acl_changes_", b"GROUP:a group", sequential=True)])
        group = Pattern(G, "a group")
        await until(lambda: group in broker.acls.known)
        assert broker.acls.known[group] == {
            Entry("User:CN=a,O=b", "192.0.2.1", Operation.DESCRIBE_CONFIGS, Permission.ALLOW),
            Entry("User:*", "*", Operation.ALL, Permission.DENY),
        }
        await java.commit([Delete("/kafka-acl/Group/a group")])
        await java.commit([Create("/kafka-acl-changes/acl_changes_", b"Group:a group", sequential=True)])
        await until(lambda: group not in broker.acls.known)

    run(scenario)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"version":9,"acls":[]}', b'{"version":1,"acls":[{"operation":"Fly"}]}']
)
def test_what_cannot_be_read_changes_nothing(data):
    async def scenario(ensemble):
        broker, other = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        await broker.acls.add(ORDERS, frozenset([entry()]))
        java = ensemble.connect()
        await java.commit([SetData("/kafka-acl/Topic/orders", data)])
        for name in (b"nonsense", b"\xff", b"FLOWER:x", b"TOPIC:orders"):
            await java.commit([Create("/kafka-acl-changes/acl_changes_", name, sequential=True)])
        for change in (
            b"{",
            b"[]",
            b'{"version":1}',
            b'{"version":2,"resourceType":"TOPIC","name":"a","patternType":"X"}',
        ):
            await java.commit([Create("/kafka-acl-extended-changes/acl_changes_", change, sequential=True)])
        # Another broker created these later: this one knows them only from their notifications, which follow the
        # others.
        later = Pattern(T, "later"), PREFIXED
        for pattern in later:
            await other.acls.add(pattern, frozenset([entry()]))
        await until(lambda: broker.acls.known.keys() >= set(later))
        assert broker.acls.known.get(ORDERS, frozenset()) == (frozenset() if not data else {entry()})

    run(scenario)


def test_a_name_that_can_have_no_znode_is_refused():
    async def scenario(ensemble):
        broker = await Broker(ensemble).begin()
        error = await broker.acls.add(Pattern(G, "a/b"), frozenset([entry()]))
        assert error.code == ErrorCode.INVALID_REQUEST

    run(scenario)


def test_a_start_with_acls_that_cannot_be_read_fails():
    async def scenario(ensemble):
        first = await Broker(ensemble).begin()
        await first.acls.add(ORDERS, frozenset([entry(permission=Permission.DENY)]))
        await ensemble.connect().commit([SetData("/kafka-acl/Topic/orders", b"{")])
        with pytest.raises(Unreadable):
            await Broker(ensemble).acls.load()

    run(scenario)


def test_many_changes_in_one_turn_are_told_once():
    async def scenario(ensemble):
        broker = await Broker(ensemble).begin()
        patterns = [Pattern(T, f"topic-{i}") for i in range(200)]
        await asyncio.gather(*(broker.acls.add(each, frozenset([entry()])) for each in patterns))
        assert set(patterns) <= broker.acls.known.keys()
        assert len(broker.heard) < 100

    run(scenario)
