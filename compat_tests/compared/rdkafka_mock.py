"""librdkafka's mock cluster, through the C API of the library that confluent-kafka includes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Self

import confluent_kafka

from compat_tests.compared.target import Lacking, Target

_PRODUCER = 0
_TRANSPORT = -195
_ERROR_BYTES = 512


def library() -> Any:
    """Return the shared library. Raises Lacking if the wheel contains none, or one without the mock."""
    found = sorted(Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka*.so*"))
    if not found:
        raise Lacking("this build of confluent-kafka has no librdkafka beside it")
    lib = ctypes.CDLL(str(found[0]))
    if not hasattr(lib, "rd_kafka_mock_cluster_new"):
        raise Lacking("this librdkafka exports no mock cluster")
    lib.rd_kafka_new.restype = ctypes.c_void_p
    lib.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    lib.rd_kafka_destroy.argtypes = [ctypes.c_void_p]
    lib.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    lib.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.rd_kafka_mock_cluster_destroy.argtypes = [ctypes.c_void_p]
    lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    lib.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
    lib.rd_kafka_mock_push_request_errors_array.argtypes = [
        ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int),
    ]  # fmt: skip
    lib.rd_kafka_mock_topic_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    lib.rd_kafka_mock_partition_set_leader.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32,
    ]  # fmt: skip
    lib.rd_kafka_mock_broker_set_down.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib.rd_kafka_mock_start_request_tracking.argtypes = [ctypes.c_void_p]
    lib.rd_kafka_mock_get_requests.restype = ctypes.POINTER(ctypes.c_void_p)
    lib.rd_kafka_mock_get_requests.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
    lib.rd_kafka_mock_request_api_key.restype = ctypes.c_int16
    lib.rd_kafka_mock_request_api_key.argtypes = [ctypes.c_void_p]
    return lib


class RdkafkaMock(Target):
    name = "librdkafka's mock"

    def __init__(self, brokers: int = 3) -> None:
        self._lib = library()
        self._brokers = brokers
        self._handle: Any = None
        self._cluster: Any = None
        self._tracking = False

    def __enter__(self) -> Self:
        said = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = self._lib.rd_kafka_new(_PRODUCER, None, said, _ERROR_BYTES)
        assert self._handle, said.value
        self._cluster = self._lib.rd_kafka_mock_cluster_new(self._handle, self._brokers)
        assert self._cluster, "no mock cluster"
        self.bootstrap = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._handle)

    def create(self, topic: str, partitions: int = 1) -> None:
        assert self._lib.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def fail(self, api: int, code: int, times: int) -> None:
        errors = (ctypes.c_int * times)(*[code] * times)
        self._lib.rd_kafka_mock_push_request_errors_array(self._cluster, api, times, errors)

    def delay(self, api: int, ms: int) -> None:
        # The arguments behind the count are C's "...": err, rtt_ms.
        for broker in range(1, self._brokers + 1):
            code = self._lib.rd_kafka_mock_broker_push_request_error_rtts(
                ctypes.c_void_p(self._cluster),
                ctypes.c_int32(broker),
                ctypes.c_int16(api),
                ctypes.c_size_t(1),
                ctypes.c_int(0),
                ctypes.c_int(ms),
            )
            assert code == 0, code

    def disconnect(self, api: int) -> None:
        self.fail(api, _TRANSPORT, 1)

    def apis_asked(self) -> list[int]:
        if not self._tracking:  # this call clears what was tracked
            self._tracking = True
            self._lib.rd_kafka_mock_start_request_tracking(self._cluster)
        count = ctypes.c_size_t()
        found = self._lib.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        return [self._lib.rd_kafka_mock_request_api_key(found[number]) for number in range(count.value)]

    def move_leader(self, topic: str) -> None:
        assert self._lib.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), 0, 2) == 0

    def kill_leader(self, topic: str) -> None:
        """The mock has no elections: a broker that is down is still the leader."""
        self._lib.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), 0, 1)
        assert self._lib.rd_kafka_mock_broker_set_down(self._cluster, 1) == 0
