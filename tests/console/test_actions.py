"""What forms do: each is sent once, over HTTP, and the cluster's state is checked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kbroker import Broker
from kbroker.console.pages import ACTIONS
from tests.console import world
from tests.console.world import ORDER

TRIED = {
    "topic-create", "topic-config", "topic-partitions", "topic-truncate", "topic-elect", "topic-elect-unclean",
    "topic-delete", "produce", "group-reset", "group-delete-offsets", "group-delete", "transaction-terminate",
    "transaction-abort", "config", "feature", "acl-add", "acl-remove", "user-add", "user-remove", "token-expire",
    "quota-set", "quota-remove", "schema-add", "schema-remove", "move", "move-cancel", "drain", "elect-all",
    "deadletter-replay", "deadletter-purge", "schedule-cancel",
    "subject-check", "subject-register", "subject-level", "subject-delete",
}  # fmt: skip


def test_every_action_is_tried_here():
    assert {each.name for each in ACTIONS} == TRIED
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert all(source.count(f'"{name}"') > 1 for name in TRIED)


@pytest.fixture
def admin(cluster):
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def test_a_topics_life(web, admin):
    words = web.do("topic-create", name="life", partitions="2", configs="retention.ms=1000\n\n").words
    assert "Topic life is created." in words
    assert "TOPIC_ALREADY_EXISTS" in web.refused("topic-create", name="life")
    web.do("topic-config", topic="life", key="retention.ms", value="2000")
    assert "2000" in web.page("/topics/life/configs?own=1").words
    web.do("topic-config", topic="life", key="retention.ms", unset="1")
    assert "2000" not in web.page("/topics/life/configs?own=1").words
    assert "no_such_key" in web.refused("topic-config", topic="life", key="no_such_key", value="1")
    web.do("topic-partitions", topic="life", count="3")
    assert len(admin.list_topics("life").topics["life"].partitions) == 3
    web.do("topic-elect", topic="life")
    assert "another leader" in web.do("topic-elect-unclean", topic="life", confirm="life").words
    assert "type life to confirm" in web.refused("topic-delete", topic="life", confirm="lif")
    assert "Deleted life." in web.do("topic-delete", topic="life", confirm="life").words
    assert web.get("/topics/life").status == 404


def test_records_are_written_and_deleted(web):
    web.do("topic-create", name="written", partitions="1")
    words = web.do("produce", topic="written", key="k", value='{"a": 1}', headers="h=1\nI=2").words
    assert "The record is at offset 0 of partition 0." in words
    web.do("produce", topic="written", key="gone", tombstone="1")
    web.do("produce", topic="written", value="no key", partition="0")
    first = web.page("/topics/written/records/0/0").words
    assert '"a": 1' in first
    assert "h 1 I 2" in first
    assert "tombstone the value is null" in web.page("/topics/written/records/0/1").words
    assert "Key none" in web.page("/topics/written/records/0/2").words
    assert "no partition 7" in web.refused("produce", topic="written", value="x", partition="7")
    web.do("topic-truncate", topic="written", partition="0", offset="1", confirm="written")
    assert "has no record at offset 0" in web.get("/topics/written/records/0/0").words
    web.do("topic-truncate", topic="written", confirm="written")
    assert "There are no records here." in web.page("/topics/written/messages").words


def test_a_reset_does_what_was_shown(web, cluster):
    world.commit(cluster.bootstrap_servers, "moved", "payments", 1.0)
    shown = web.page("/group/reset?name=moved&to=earliest").text
    fields = re.findall(r'name="set" value="([^"]+)"', shown)
    assert sorted(fields) == [f"payments:{n}:0" for n in range(3)]
    assert "type moved to confirm" in web.refused("group-reset", name="moved", set=fields[0], confirm="")
    words = web.do("group-reset", name="moved", set="payments:1:0", confirm="moved").words
    assert "1 offset of moved moved." in words
    shift = web.page("/group/reset?name=moved&to=shift&shift=-5&partitions=0").words
    assert "-5" in shift
    at = web.page("/group/reset?name=moved&to=time&time=2099-01-01").text
    ends = sorted(re.findall(r'name="set" value="([^"]+)"', at))
    assert len(ends) == 3
    for query, said in (
        ("to=shift&shift=x", "a shift is a number"),
        ("to=time", "the time is missing"),
        ("to=offset", "the offset is missing"),
        ("to=earliest&topic=nope", "does not exist"),
    ):
        assert said in web.page(f"/group/reset?name=moved&{query}").words
    web.do("group-delete-offsets", group="moved", topic="payments", confirm="moved")
    assert "has no committed offsets" in web.page("/group?name=moved").words
    web.do("group-delete", group="moved", confirm="moved")
    assert web.get("/group?name=moved").status == 404


@pytest.mark.long
def test_a_group_with_members_keeps_its_offsets(web, cluster):
    with world.members(cluster.bootstrap_servers, "busy", "orders", 2):
        page = web.page("/group?name=busy")
        assert page.text.count('<td class="has">') == 6
        assert "The group has members" in web.page("/group/reset?name=busy&to=earliest&topic=orders").words
        assert "has members" in web.refused("group-reset", name="busy", set="orders:0:0", confirm="busy")
        assert "NON_EMPTY_GROUP" in web.refused("group-delete", group="busy", confirm="busy")


def test_a_group_of_the_consumer_protocol_is_shown(web, cluster):
    with world.members(cluster.bootstrap_servers, "new", "orders", 2, "consumer"):
        page = web.page("/group?name=new")
        assert page.text.count('<td class="has">') == 6
        assert "consumer" in page.words
        assert "Lag – no committed offset to count from" in page.words, "not a lag of 0"
        assert re.search(r"new Stable consumer 2 – ", web.page("/groups?q=new").words)


def test_transactions_are_ended(web, cluster):
    with world.open_transaction(cluster.bootstrap_servers, "ends", "audit-log"):
        assert "Open since" in web.page("/transaction?id=ends").words
        page = web.page("/transactions/producers?topic=audit-log&partition=0").text
        start = re.search(r"begins at (\d+)", page)
        assert start is not None
        refused = web.refused(
            "transaction-abort", topic="audit-log", partition="0", start=start[1], confirm="audit-log"
        )
        assert "it does not hang" in refused
        web.do("transaction-terminate", id="ends", confirm="ends")
        assert "CompleteAbort" in web.page("/transactions").words
        ended = web.page("/transaction?id=ends").words
        assert "Last began" in ended
        assert "Open since" not in ended
    with world.open_transaction(cluster.bootstrap_servers, "forced", "audit-log"):
        page = web.page("/transactions/producers?topic=audit-log&partition=0").text
        start = re.search(r"begins at (\d+)", page)
        assert start is not None
        web.do("transaction-abort", topic="audit-log", partition="0", start=start[1], force="1", confirm="audit-log")
        after = web.page("/transactions/producers?topic=audit-log&partition=0").words
        assert not re.search(r"begins at \d", after)


def test_configs_are_set_and_unset(web):
    web.do("config", kind="broker", name="1", key="log.cleaner.threads", value="2")
    assert "set for this broker" in web.page("/configs?own=1").words
    web.do("config", kind="broker", name="1", key="log.cleaner.threads", unset="1")
    web.do("config", kind="broker", everyone="1", key="message.max.bytes", value="2000000")
    assert "2000000" in web.page("/configs?everyone=1&own=1").words
    web.do("config", kind="broker", everyone="1", key="message.max.bytes", unset="1")
    logger_rows = web.page("/configs?kind=logger").text.replace("<wbr>", "")
    loggers = re.findall(r"<summary>([^<]+)</summary>", logger_rows)
    web.do("config", kind="logger", name="1", key=loggers[0], value="DEBUG")
    assert "DEBUG" in web.page(f"/configs?kind=logger&q={loggers[0]}").words
    web.do("config", kind="logger", name="1", key=loggers[0], unset="1")
    web.do("config", kind="group", name="some", key="consumer.session.timeout.ms", value="50000")
    assert "50000" in web.page("/configs?kind=group&name=some").words
    assert "a broker has a number" in web.refused("config", kind="broker", name="x", key="a", value="b")


def test_a_secret_is_not_shown(web, start):
    with Broker({"ssl.keystore.password": "hidden-away"}) as broker:
        other = start(broker.bootstrap_servers)
        page = other.page("/configs?q=ssl.keystore.password")
        assert "(secret)" in page.words
        assert "hidden-away" not in page.text


def test_a_feature_is_changed(web):
    page = web.page("/features").words
    assert "transaction.version" in page
    web.do("feature", feature="transaction.version", level="1", confirm="transaction.version")
    web.do("feature", feature="transaction.version", level="2", confirm="transaction.version")
    assert "nothing is changed" in web.refused("feature", feature="nope", level="9", confirm="nope")


def test_acls_come_and_go(web):
    rule = {
        "principal": "User:alice", "permission": "Deny", "operation": "Write", "host": "*", "resource": "Topic",
        "resource_name": "secret-", "pattern": "Prefixed",
    }  # fmt: skip
    assert "Added" in web.do("acl-add", **rule).words
    page = web.page("/acls?q=alice+secret").words
    assert "User:alice Deny Write Topic secret- Prefixed" in page
    assert "a principal is TYPE:NAME" in web.refused("acl-add", **{**rule, "principal": "alice"})
    assert "Removed" in web.do("acl-remove", **rule, confirm="User:alice").words
    assert "this ACL does not exist any more" in web.refused("acl-remove", **rule, confirm="User:alice")


def test_users_come_and_go(web):
    page = web.do("user-add", name="carol", password="s3cret-enough", again="s3cret-enough", mechanism="SCRAM-SHA-256")
    assert "SCRAM-SHA-256" in page.words
    assert "s3cret-enough" not in page.text
    assert "the passwords differ" in web.refused("user-add", name="carol", password="a", again="b")
    web.do("user-remove", name="carol", confirm="carol")
    assert "Nobody has a SCRAM password." in web.page("/users").words


def test_quotas_come_and_go(web):
    web.do("quota-set", **{"user": "dave", "default-client-id": "1", "key": "producer_byte_rate", "value": "1000"})
    assert "user dave, default client-id producer_byte_rate" in web.page("/quotas").words
    assert "not negative" in web.refused("quota-set", user="dave", key="producer_byte_rate", value="-1")
    assert "name the client of the limit" in web.refused("quota-set", key="producer_byte_rate", value="1")
    web.do("quota-remove", **{"user": "dave", "default-client-id": "1", "key": "producer_byte_rate"})
    assert "There are no quotas." in web.page("/quotas").words


def test_tokens_are_refused_where_there_are_none(web):
    assert "token" in web.refused("token-expire", id="nope", confirm="nope")


def test_schemas_come_and_go(web):
    web.do("schema-add", name="42", kind="avro", text=json.dumps(ORDER))
    found = web.page("/topics/orders-avro/records/0/0").words
    assert '"customer": "c' in found
    assert "Confluent's framing, schema id 42, decoded by 42" in found
    assert "Order" in web.page("/schemas").words
    web.do("schema-remove", name="42")
    assert "a schema of the name 42 would decode it" in web.page("/topics/orders-avro/records/0/0").words
    for kind, text in (("avro", "{"), ("avro", '{"type": "nope"}'), ("protobuf", "!!"), ("protobuf", "AAAA")):
        web.refused("schema-add", name="x", kind=kind, text=text)
