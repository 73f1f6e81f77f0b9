"""Share groups in a cluster with users, TLS and ACLs: members need no right for the requests between brokers.

tests/security/authorizer shows that clients without CLUSTER_ACTION are refused the requests between brokers.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Acl, Cluster
from tests.txn.raw import until

from .sharing import ACCEPT, SETTINGS
from .test_share_groups import begin_at_the_earliest

RECORDS = 90
ACLS = [
    Acl(allow_principal="User:admin", operation="All", cluster=True),
    Acl(allow_principal="User:admin", operation="All", topic="*", group="*"),
    Acl(allow_principal="User:alice", operation="Read", topic="jobs", group="workers"),
    Acl(allow_principal="User:alice", operation="Describe", topic="jobs"),
]


@pytest.mark.long
@pytest.mark.parametrize("tls", [False, True])
def test_members_and_brokers_have_their_own_rights(tls: bool) -> None:
    users = {"admin": "a", "alice": "b"}
    with Cluster(brokers=3, config=SETTINGS, users=users, acls=ACLS, tls=tls) as cluster:
        admin_settings = cluster.client_settings("admin").confluent_kafka
        admin = AdminClient(admin_settings)
        admin.create_topics([NewTopic("jobs", 3, 3)])["jobs"].result(30)
        begin_at_the_earliest(admin, "workers")
        producer = Producer(admin_settings)
        for number in range(RECORDS):
            producer.produce("jobs", str(number), partition=number % 3)
        assert producer.flush(30) == 0
        settings = {"group.id": "workers", "share.acknowledgement.mode": "explicit"}
        consumer = ShareConsumer({**cluster.client_settings("alice").confluent_kafka, **settings})
        consumer.subscribe(["jobs"])
        done: set[tuple[int, int]] = set()

        def worked() -> bool:
            messages = [each for each in consumer.poll(0.5) if each.error() is None]
            for message in messages:
                consumer.acknowledge(message, ACCEPT)
            answers = consumer.commit_sync(30.0) if messages else {}
            assert not any(answers.values()), answers
            done.update((each.partition(), each.offset()) for each in messages)
            return len(done) == RECORDS

        until("all records", worked)
        led = {number: len(broker.node.services.share) for number, broker in cluster.brokers.items()}
        assert led == {1: 1, 2: 1, 3: 1}
        consumer.close()
