"""What is said of a Kafka that does not answer."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from kafka.errors import NodeNotReadyError

from connectors.kafka.connection import Connection
from ordering.errors import BrokerUnreachable


@pytest.mark.parametrize(("took_s", "said"), [(0.2, "at 127.0.0.1:1. "), (3.4, "at 127.0.0.1:1 (waited 3 s). ")])
def test_the_time_that_was_waited_is_true(took_s: float, said: str) -> None:
    """A broker that refuses at once was not waited for."""
    clock = patch("time.monotonic", side_effect=[100.0, 100.0 + took_s])
    with clock, pytest.raises(BrokerUnreachable) as raised, Connection("127.0.0.1:1").reachable():
        raise NodeNotReadyError
    assert said in str(raised.value)
