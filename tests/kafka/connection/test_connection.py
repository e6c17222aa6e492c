"""Report a Kafka that does not answer, and leave no thread or file of the attempt."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from unittest.mock import patch

import pytest
from kafka.errors import NodeNotReadyError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.security import Security
from ordering.base.errors import BrokerUnreachable, KafkaRefused
from tests.leftovers import assert_nothing_is_left


@pytest.mark.parametrize(("took_s", "said"), [(0.2, "at 127.0.0.1:1. "), (3.4, "at 127.0.0.1:1 (waited 3 s). ")])
def test_the_time_that_was_waited_is_true(took_s: float, said: str) -> None:
    """A broker that refuses at once was not waited for."""
    clock = patch("time.monotonic", side_effect=[100.0, 100.0 + took_s])
    with clock, pytest.raises(BrokerUnreachable) as raised, Connection("127.0.0.1:1").reachable():
        raise NodeNotReadyError
    assert said in str(raised.value)


def test_a_login_that_no_server_has_answered_is_checked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = f"127.0.0.1:{listening.getsockname()[1]}"
    connection = Connection(server, timeout=2.0, security=Security(protocol="SSL"))
    connection.check_login()
    with socket.create_server(("127.0.0.1", int(server.rpartition(":")[2]))) as listening:
        listening.settimeout(10.0)

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1)
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with pytest.raises(KafkaRefused, match="speaks no TLS"):
            connection.check_login()
        answering.join(10.0)


def _enter_admin(connection: Connection) -> None:
    with connection.admin():
        pass


def _ask_desk(connection: Connection) -> None:
    with closing(connection.metadata_client()) as metadata:
        metadata.topics()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "connect"),
    [
        ("", _enter_admin),
        ("", _ask_desk),
        ("kafka-python", Connection.consumer),
        ("kafka-python", Connection.producer),
        ("confluent", Connection.consumer),
        ("confluent", Connection.producer),
    ],
)
def test_an_outage_uses_up_neither_threads_nor_files(
    transport: str, connect: Callable[[Connection], object], caplog: pytest.LogCaptureFixture
) -> None:
    """By itself, kafka-python leaves a thread and four files for each client that finds no broker."""
    caplog.set_level(logging.CRITICAL, "kafka")  # a captured error would keep its sockets open
    connection = Connection("127.0.0.1:1", timeout=0.05, transport=transport)

    def try_once() -> None:
        with pytest.raises(BrokerUnreachable):
            connect(connection)

    assert_nothing_is_left(try_once, times=10)
