"""The pytest fixtures, in suites that use them from outside."""

from __future__ import annotations

import importlib
from importlib.machinery import SourceFileLoader

import pytest

from kbroker import Broker, handlers

pytest_plugins = ["pytester"]

handlers.load_all(in_cluster=True)  # once for all runs: each run here unloads the modules that it has loaded itself
SUITE = """
import pytest
from confluent_kafka import Producer
from kbroker import ErrorCode

def test_one(kafka):
    kafka.topics.create("same").produce("one")

def test_another_sees_nothing_of_it(kafka):
    assert not kafka.topics
    kafka.topics.create("same")

def test_a_clock(kafka, kafka_clock):
    topic = kafka.topics.create("aged", config={"retention.ms": 3600000})
    topic.produce("old", timestamp=kafka_clock.now_ms())
    kafka_clock.advance(hours=2)
    assert not topic.records()

def test_faults(kafka, kafka_faults):
    with kafka_faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=1) as fault:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("t", "v")
        assert producer.flush(10) == 0
    assert fault.hits == 1

@pytest.mark.kafka(users={"alice": "secret"}, config={"num.partitions": 3})
def test_users(kafka):
    producer = Producer(kafka.client_settings("alice").confluent_kafka)
    producer.produce("t", "v")
    assert producer.flush(10) == 0
    assert kafka.topics["t"].partitions == 3

def test_faults_of_a_cluster(kafka_cluster, kafka_faults):
    assert kafka_faults is kafka_cluster.faults

def test_topic(kafka_topic, kafka_broker):
    assert kafka_broker.topics[kafka_topic].partitions == 1

def test_topic_of_the_clean_broker(kafka_topic, kafka_faults, kafka):
    assert list(kafka.topics) == [kafka_topic]

@pytest.mark.kafka(config={"num.partitions": 3})
def test_topic_of_a_broker_of_its_own(kafka_topic, kafka):
    assert list(kafka.topics) == [kafka_topic]
"""


@pytest.fixture(autouse=True)
def embedded(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    # Without this option, pytest-asyncio prints a warning in each run.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-o asyncio_default_fixture_loop_scope=function")


def test_each_test_has_a_clean_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=9)


def test_a_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(kafka_cluster): assert len(kafka_cluster.brokers) == 3")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_key_that_does_not_exist_is_a_warning(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kafka(config={"num.partition": 3})
        def test_it(kafka):
            pass

        @pytest.mark.kafka(config={"num.partition": 3})
        def test_a_cluster(kafka_cluster):
            pass
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, warnings=2)
    result.stdout.fnmatch_lines(["*pytest_plugin.py:*: UserWarning: unknown config num.partition*"] * 2)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error::UserWarning")
    result.assert_outcomes(errors=2)


def test_a_topic_and_settings_of_a_cluster(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nkafka_config =\n    message.max.bytes = 1000\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kafka(config={"num.partitions": 5}, users={"alice": "secret"})
        def test_settings(kafka_cluster, kafka_topic, kafka_faults):
            assert list(kafka_cluster.topics) == [kafka_topic]
            assert kafka_faults is kafka_cluster.faults
            settings = kafka_cluster.client_settings("alice")
            assert settings.security_protocol == "SASL_PLAINTEXT"
            for broker in kafka_cluster.brokers.values():
                assert broker.node.config.get_int("num.partitions") == 5
                assert broker.node.config.get_int("message.max.bytes") == 1000

        @pytest.mark.kafka(brokers=5)
        def test_what_is_no_setting(kafka_cluster):
            pass

        def test_the_clean_broker_comes_first(kafka_topic, kafka_cluster, kafka):
            assert (list(kafka.topics), list(kafka_cluster.topics)) == ([kafka_topic], [])

        def test_what_fails_shows_requests_of_all(kafka_cluster):
            from confluent_kafka.admin import AdminClient

            AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers}).list_topics(timeout=10)
            assert not kafka_cluster.requests.of("Metadata")
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["@pytest.mark.kafka takes acls, config, tls, users, not brokers"])
    result.stdout.fnmatch_lines(["*requests to kbroker*", "*<Metadata v* from rdkafka*"])


def test_a_cluster_has_no_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(kafka_cluster, kafka_clock):
            pass

        def test_one_beside_a_cluster(kafka_cluster, kafka, kafka_clock):
            assert kafka_clock is kafka.clock

        def test_a_topic_is_of_the_broker_whose_clock_it_is(kafka_topic, kafka_clock, kafka_broker):
            assert list(kafka_broker.topics) == [kafka_topic]
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["kafka_clock needs a single broker: a cluster has no clock to move"])


def test_a_test_that_fails_tells_the_seeds_of_its_storms(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_one_that_passes(kafka):
            kafka.faults.storm(seed=1)

        def test_it(kafka):
            for seed in (7, 8):
                with kafka.faults.storm(["Produce", "Fetch"], seed=seed, rate=0.2):
                    assert seed != 8, "lost"

        def test_another(kafka_faults):
            for seed in range(100, 112):
                kafka_faults.storm(seed=seed)
            kafka_faults.clear()
            assert False
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    again = "storm(['Fetch', 'Produce'], rate=0.2, seed=%d), met by 0 requests"
    result.stdout.fnmatch_lines(
        [f"E*in {again.replace('[', '[[]') % 8}", "*storms in kbroker*", again.replace("[", "[[]") % 7]
    )
    result.stdout.fnmatch_lines(["... 2 before", "storm(rate=0.05, seed=102), met by 0 requests"])
    result.stdout.no_fnmatch_line("*seed=1)*")


def test_the_same_settings_for_all(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nkafka_config =\n    num.partitions = 4\nkafka_tls = true\nkafka_users =\n    bob=secret\n"
    )
    pytester.makepyfile(
        """
        from confluent_kafka import Producer

        def test_it(kafka):
            settings = kafka.client_settings("bob")
            assert settings.security_protocol == "SASL_SSL"
            producer = Producer(settings.confluent_kafka)
            producer.produce("t", "v")
            assert producer.flush(10) == 0
            assert kafka.topics["t"].partitions == 4
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_test_that_fails_shows_what_went_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from confluent_kafka import Producer

        def test_it(kafka):
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop"})
            producer.produce("orders", "v")
            producer.flush(10)
            assert not kafka.topics["orders"].values()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*requests to kbroker*", "*<Produce v* from shop about orders, * ms>*"])
    result.stdout.fnmatch_lines(["*Captured log call*", "*INFO*orders*"])


def test_what_met_a_fault_is_shown_however_long_ago(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from confluent_kafka import Producer
        from kbroker import ErrorCode

        def test_it(kafka, kafka_faults):
            settings = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop", "linger.ms": 0}
            producer = Producer(settings)
            with kafka_faults.fail("Produce", ErrorCode.INVALID_RECORD, times=1):
                producer.produce("orders", "v")
                producer.flush(10)
            for _ in range(25):
                producer.produce("orders", "v")
                producer.flush(10)
            assert not kafka.topics["orders"].values()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*requests to kbroker*", "...", "<Produce * fault: fail INVALID_RECORD>", "...", "<Prod*"]
    )


def test_what_clients_ask_all_the_time_hides_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from confluent_kafka import Producer

        def test_it(kafka):
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop"})
            producer.produce("orders", "v")
            producer.flush(10)
            for _ in range(25):
                producer.list_topics(timeout=10)
            assert not kafka.topics["orders"].values()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*requests to kbroker*", "<Produce * from shop about orders*>", "...", "<Metadata *"])
    assert result.stdout.str().count("<Metadata") <= 22


def test_a_broker_of_somebody_else(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as somebodys:
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", somebodys.bootstrap_servers)
        pytester.makepyfile(SUITE)
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs")
    result.assert_outcomes(skipped=9)
    result.stdout.fnmatch_lines(["*faults cannot be used with the broker that KAFKA_BOOTSTRAP_SERVERS names*"])


def test_settings_that_are_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.kafka(user='bob')\ndef test_it(kafka): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["@pytest.mark.kafka takes acls, config, tls, users, not user"])
    pytester.makeini("[pytest]\nkafka_config = nonsense\n")
    pytester.makepyfile("def test_it(kafka): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["kafka_config: 'nonsense' is not of the form key=value"])


def test_unittest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from kbroker import BrokerTestCase

        class TestOrders(BrokerTestCase):
            broker_options = {"config": {"num.partitions": 2}}

            def test_one(self):
                self.assertFalse(self.broker.topics)
                self.broker.topics.create("same", 1).produce("v")

            test_two = test_one
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_coroutines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        import pytest
        from aiokafka import AIOKafkaProducer

        @pytest.fixture
        async def producer(kafka):
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                yield producer

        @pytest.mark.asyncio
        async def test_it(kafka, kafka_topic, kafka_faults, kafka_clock, producer):
            kafka_clock.advance(hours=1)
            with kafka_faults.delay("Produce", 0.05, times=1) as fault:
                await producer.send_and_wait(kafka_topic, b"one")
            assert fault.hits == 1
            assert kafka.topics[kafka_topic].values() == [b"one"]
        """
    )
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=1)


@pytest.mark.long
def test_each_worker_of_xdist_has_a_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pathlib
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_it(kafka, kafka_topic, worker_id, number):
            kafka.topics[kafka_topic].produce("one")
            assert list(kafka.topics) == [kafka_topic], "nobody else is at work here"
            pathlib.Path(f"{worker_id}.address").write_text(kafka.bootstrap_servers)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "--dist", "each").assert_outcomes(passed=16)
    addresses = {path.read_text() for path in pytester.path.glob("*.address")}
    assert len(addresses) == 2


def test_the_modules_of_kbroker_are_not_rewritten() -> None:
    """The broker's thread also loads modules, and pytest's parser would fail there if another thread parses."""
    module = importlib.import_module("kbroker.handlers.authorized.required_rights")
    assert type(module.__loader__) is SourceFileLoader
