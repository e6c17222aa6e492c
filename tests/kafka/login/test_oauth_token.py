"""Get the token for OAUTHBEARER from a server of the test's own."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from connectors.kafka.login.oauth_token import TokenProvider
from connectors.kafka.login.security import Security
from ordering.base.errors import EnvironmentProblem


class _Server(HTTPServer):
    answer, status = b'{"access_token": "t1", "expires_in": 300}', 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.server.asked.append((self.headers["Authorization"], self.rfile.read(size)))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        """Log no request."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def provider(server: _Server) -> TokenProvider:
    url = f"http://127.0.0.1:{server.server_port}/token"
    return TokenProvider(
        Security(
            protocol="SASL_SSL",
            mechanism="OAUTHBEARER",
            username="me",
            password="open sesame",
            token_url=url,
            token_scope="kafka",
        )
    )


@pytest.mark.slow
def test_it_is_asked_for_once(server: _Server) -> None:
    tokens = provider(server)
    assert [tokens.token(), tokens.token()] == ["t1", "t1"]
    [(authorization, form)] = server.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"me:open sesame"
    assert form == b"grant_type=client_credentials&scope=kafka"


@pytest.mark.slow
def test_one_that_expires_is_asked_for_again(server: _Server) -> None:
    server.answer = b'{"access_token": "t2", "expires_in": 0}'
    tokens = provider(server)
    assert [tokens.token(), tokens.token()] == ["t2", "t2"]
    assert len(server.asked) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [(401, b"", "refuses me: 401"), (200, b"<html>", "gave no token"), (200, b"[]", "gave no token")],
)
def test_no_token(server: _Server, status: int, answer: bytes, says: str) -> None:
    server.status, server.answer = status, answer
    with pytest.raises(EnvironmentProblem, match=says) as caught:
        provider(server).token()
    assert "open sesame" not in str(caught.value)
