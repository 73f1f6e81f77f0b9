"""A slow disk under the metadata: only the client that requests a change waits."""

from __future__ import annotations

import os
import threading

import pytest

from compat_tests.wire.client import SILENCE, WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest


def test_only_who_asked_for_a_change_waits_for_the_disk(tmp_path, monkeypatch: pytest.MonkeyPatch):
    with Broker(data_dir=str(tmp_path)) as broker:
        address = broker.bootstrap_servers
        with WireClient(address) as asking, WireClient(address) as other:
            free, sync = threading.Event(), os.fdatasync

            def slow(fd: int) -> None:
                assert free.wait(30)
                sync(fd)

            monkeypatch.setattr(os, "fdatasync", slow)
            try:
                asking.start(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)], timeout_ms=5000), 5)
                metadata = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
                assert asking.receive(timeout=0.2) == SILENCE
                assert other.ask(metadata, 9).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                again = CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)], timeout_ms=5000, validate_only=True)
                other.start(again, 5)
                assert other.receive(timeout=0.2) == SILENCE, "what it tells of is not stored yet"
            finally:
                free.set()
            assert asking.finish().topics[0].error_code == 0
            assert other.finish().topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            assert other.ask(metadata, 9).topics[0].error_code == 0
