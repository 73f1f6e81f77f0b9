"""Bytes and numbers that do not fit into a text or a field of Kafka's: a page reports them, and nothing fails."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.cli.main import cli
from kbroker.console.passwords import hashed


def written(bootstrap, topic, value):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(20)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, b"k")
    assert producer.flush(20) == 0


def raw(web, path, body):
    return web("POST", path, body.encode(), {"content-type": "application/x-www-form-urlencoded"})


def test_half_a_character_in_json_is_shown_as_it_was_written(web, cluster):
    written(cluster.bootstrap_servers, "half", b'{"a": "\\ud800"}')
    assert r"\ud800" in web.page("/topics/half/messages").words
    assert r"\ud800" in web.page("/topics/half/records/0/0").words
    assert r"\ud800" not in web.page('/topics/half/messages?where=.a%20%3D~%20"x"').words


@pytest.mark.parametrize("offset", ["9" * 30, "9" * 5_000, "x"])
def test_an_offset_that_is_none_is_refused(web, offset):
    assert web.get(f"/topics/orders/records/0/{offset}").status in (400, 404)


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("topic-create", "name=%ff"),
        ("topic-create", "name=large&partitions=99999999999"),
        ("topic-create", "name=large&replicas=99999"),
        ("topic-partitions", "topic=orders&count=99999999999"),
        ("topic-delete", "topic=%ff&confirm=%ff"),
        ("user-add", "name=who&password=%ff&again=%ff"),
        ("produce", "topic=orders&headers=%ff%3D1"),
        ("group-reset", "name=g&confirm=g&set=orders:0:9999999999999999999"),
        ("move", "topic=orders&partition=0&to=99999999999"),
        ("feature", "feature=x&confirm=x&level=99999999"),
    ],
)
def test_what_kafka_has_no_place_for_is_refused_in_words(web, action, fields):
    refused = raw(web, f"/do/{action}", f"token={web.token()}&{fields}")
    assert refused.status == 400, refused.text
    assert "Wrong input" in refused.words


def test_bytes_that_are_no_text_do_not_log_in(start, cluster):
    web = start(cluster.bootstrap_servers, users={"alice": hashed("open sesame")})
    assert raw(web, "/login", "user=alice&password=%ff").status == 401
    assert raw(web, "/login", "user=%ff&password=x").status == 400


def test_one_logs_in_while_the_cluster_hangs(start, cluster, monkeypatch):
    web = start(cluster.bootstrap_servers, users={"alice": hashed("open sesame")})
    monkeypatch.setattr("kbroker.console.asking._MOST_WAITING", 0)
    assert web.send("/login", {"user": "alice", "password": "open sesame"}).status == 303


def test_the_line_to_copy_names_a_topic_that_looks_like_an_option(web, cluster):
    written(cluster.bootstrap_servers, "--help", b"printed")
    page = web.page("/topics/--help/records/0/0").text
    line = page.partition('<code id="command" tabindex="0">')[2].partition("<")[0]
    done = CliRunner().invoke(cli, shlex.split(line)[1:])
    assert (done.exit_code, done.stdout) == (0, "printed\n")
