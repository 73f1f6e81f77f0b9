"""What a test can have of an embedded broker beside its service: misbehaviour, a look at what was asked, the time.

The assertions are here; all else comes with a broker: `broker.faults`, `broker.requests`, `broker.clock`.
"""

from kbroker.testing.asserting import assert_committed, assert_no_requests, assert_records, assert_requested

__all__ = ["assert_committed", "assert_no_requests", "assert_records", "assert_requested"]
