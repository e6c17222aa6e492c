"""The HTTP port of a job, over real sockets."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from connectors.diagnosis.endpoint import CLIENT_S, MOST_CLIENTS, Endpoint, HostPort, HttpAnswer, Query
from ordering.base.errors import AbcastError, EnvironmentProblem, UsageError


def fails(_: Query) -> HttpAnswer:
    raise ValueError("a bug, with /a/path")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(HostPort.parse(":0"), {"/": lambda _: HttpAnswer("grüße\n"), "/fails": fails}) as opened:
        yield opened


def ask(
    endpoint: Endpoint, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, str, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(endpoint.place.host, endpoint.place.port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    response = connection.getresponse()
    return response.status, response.read().decode(), response


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("9464", HostPort("127.0.0.1", 9464)),
        (":9464", HostPort("127.0.0.1", 9464)),
        ("0.0.0.0:0", HostPort("0.0.0.0", 0)),
        ("localhost:65535", HostPort("localhost", 65535)),
        ("[::1]:9464", HostPort("::1", 9464)),
    ],
)
def test_places(text: str, place: HostPort) -> None:
    assert HostPort.parse(text) == place
    assert HostPort.parse(str(place)) == place


@pytest.mark.parametrize("text", ["", "x", "host:", "host:-1", ":65536", "::1:9464", "[::1]", "a]:9", "1:²"])
def test_no_places(text: str) -> None:
    with pytest.raises(UsageError, match="is no place to listen at: write HOST:PORT"):
        HostPort.parse(text)


@pytest.mark.slow
def test_answers(endpoint: Endpoint) -> None:
    """Only reading is allowed; no answer names the Python or a path of the machine."""
    status, body, response = ask(endpoint, "/?whatever=1")
    assert (status, body, response.getheader("Server")) == (200, "grüße\n", "abcast ")
    assert ask(endpoint, "/", "HEAD")[:2] == (200, "")
    assert ask(endpoint, "/nothing")[:2] == (404, "there is /, /fails\n")
    assert ask(endpoint, "/", "POST")[0] == 501
    assert ask(endpoint, "/fails")[:2] == (500, "abcast has failed here: see its log\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LocalHost:9464", "127.0.0.1:1", "[::1]:9464", "")),
        *((name, 403) for name in ("evil.example", "evil.example:9464", "127.0.0.1.evil.example")),
    ],
)
def test_on_loopback_a_page_can_not_ask_by_its_own_name(endpoint: Endpoint, host: str, status: int) -> None:
    assert ask(endpoint, "/", host=host)[0] == status


@pytest.mark.slow
def test_at_all_addresses_any_name_is_right() -> None:
    with Endpoint(HostPort("0.0.0.0", 0), {"/": lambda _: HttpAnswer("here\n")}) as opened:
        place = Endpoint.__new__(Endpoint)
        place.place = HostPort("127.0.0.1", opened.place.port)
        assert ask(place, "/", host="pod.example")[0] == 200


@pytest.mark.slow
def test_clients_that_wait_for_an_answer_are_bounded() -> None:
    """Each newcomer disconnects one more of the oldest."""
    goes_on = threading.Event()

    def waits(_: Query) -> HttpAnswer:
        goes_on.wait(30)
        return HttpAnswer("at last\n")

    with Endpoint(HostPort.parse(":0"), {"/": waits}) as opened:
        clients = [socket.create_connection(opened.place, timeout=30) for _ in range(MOST_CLIENTS + 3)]
        try:
            for client in clients:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert [client.recv(1) for client in clients[:3]] == [b""] * 3
            goes_on.set()
            assert all(client.recv(1) for client in clients[3:])
        finally:
            goes_on.set()
            for client in clients:
                client.close()


@pytest.mark.parametrize(
    ("place", "kind", "said"),
    [
        (HostPort("192.0.2.1", 9464), UsageError, "192.0.2.1 is no name or address of this machine"),
        (HostPort("a..b", 9464), UsageError, "a..b is no name or address of this machine"),
        (HostPort("no.host.invalid", 9464), UsageError, "no.host.invalid is no name or address of this machine"),
    ],
)
def test_a_host_that_is_not_ours(place: HostPort, kind: type[AbcastError], said: str) -> None:
    with pytest.raises(kind, match=said):
        Endpoint(place, {})


@pytest.mark.slow
def test_a_port_in_use(endpoint: Endpoint) -> None:
    with pytest.raises(EnvironmentProblem, match=f"another process has port {endpoint.place.port}"):
        Endpoint(endpoint.place, {})


@pytest.mark.slow
def test_stalled_clients_hold_up_nobody(endpoint: Endpoint) -> None:
    """Clients that send half a request: one more is answered at once, and at most so many are kept."""
    before = threading.active_count()
    stalled = [socket.create_connection(endpoint.place, timeout=30) for _ in range(2 * MOST_CLIENTS)]
    try:
        for client in stalled:
            client.sendall(b"GET / HT")
        asked_at = time.monotonic()
        assert ask(endpoint, "/")[0] == 200
        assert time.monotonic() - asked_at < CLIENT_S
        assert stalled[0].recv(1) == b""  # the oldest was disconnected
        assert threading.active_count() - before < 2 * MOST_CLIENTS
    finally:
        for client in stalled:
            client.close()


@pytest.mark.slow
def test_a_client_that_goes_leaves_no_trace(endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(endpoint.place) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # reset at once
    assert ask(endpoint, "/")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_the_port_is_closed_at_the_end() -> None:
    with Endpoint(HostPort.parse(":0"), {}) as opened:
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(opened.place, timeout=5)
    with Endpoint(opened.place, {}) as again:  # and can be had again at once
        assert again.place == opened.place
