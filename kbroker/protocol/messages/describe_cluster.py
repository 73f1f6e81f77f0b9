"""DescribeCluster (key 60): cluster id, controller and brokers (KIP-700)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = f()
    endpoint_type: i8 = f("1+", default=1)
    include_fenced_brokers: bool = f("2+")


@struct
class DescribeClusterBroker:
    broker_id: i32 = f()
    host: str = f()
    port: i32 = f()
    rack: str | None = f(nullable="0+", default=None)
    is_fenced: bool = f("2+")


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    endpoint_type: i8 = f("1+", default=1)
    cluster_id: str = f()
    controller_id: i32 = f(default=-1)
    brokers: list[DescribeClusterBroker] = f()
    cluster_authorized_operations: i32 = f(default=-2147483648)
