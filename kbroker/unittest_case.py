"""unittest with a broker: `class TestOrders(BrokerTestCase)` has `self.broker`, which is clean before each test.

Owns the broker of a test class. Never runs a test.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

from kbroker.embed import Broker


class BrokerTestCase(unittest.TestCase):
    """A broker for the tests of a class. It gets the class's `broker_options`, and is reset before each test."""

    broker: ClassVar[Broker]
    broker_options: ClassVar[Mapping[str, Any]] = {}
    """The arguments of `Broker`: config, tls, users, acls."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.broker = Broker(**cls.broker_options).start()
        cls.addClassCleanup(cls.broker.stop)

    def setUp(self) -> None:
        super().setUp()
        self.broker.reset()
        self.broker.requests.clear()  # start to record with the first test
