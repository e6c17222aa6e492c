"""An HTTP server in threads of its own, for probes and scrapers: it only reads.

On loopback it answers to this machine's names only, so that no page in a browser here can ask by a name of its own.

It has GET and HEAD, one request a connection, and no request body. A client that stalls holds up nobody: it has a
thread of its own, for CLIENT_S between two bytes, and of more than MOST_CLIENTS the oldest is disconnected.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from ordering.base.errors import EnvironmentProblem, UsageError

LOOPBACK = "127.0.0.1"
CLIENT_S = 5.0
"""The longest silence of a client, in seconds."""
MOST_CLIENTS = 32
_HIGHEST_PORT = 65_535
_MOST_FIELDS = 10

_logger = logging.getLogger(__name__)


class HostPort(NamedTuple):
    """A host and a port to listen at. Port 0: any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Parse `HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `PORT`; without a host it is this machine alone.

        Raises UsageError.
        """
        host, _, port = text.strip().rpartition(":")
        is_host = host.startswith("[") and host.endswith("]") if ":" in host else "]" not in host and "[" not in host
        if not (port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT and is_host):
            raise UsageError(f"{text!r} is no place to listen at: write HOST:PORT, such as {LOOPBACK}:9464.")
        return cls(host.strip("[]") or LOOPBACK, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpAnswer(NamedTuple):
    """The answer to a request. `policy`: the sources that a browser may use for it."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    policy: str = "default-src 'none'; frame-ancestors 'none'"


Query = Mapping[str, str]
"""The values of a request's query string, by name."""
Answers = Mapping[str, Callable[[Query], HttpAnswer]]
"""The function that answers, by path. It is called in a client's thread."""


class Endpoint:
    """An open port. A context manager; the port is closed at the end."""

    def __init__(self, place: HostPort, answers: Answers) -> None:
        """Listen, and answer from now on.

        Raises UsageError for a host that is not this machine's, EnvironmentProblem for a port that can't be had.
        """
        try:
            family, _, _, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, address, answers, place.host)
        except (OSError, UnicodeError) as error:  # a name like a..b can't be encoded
            raise _explained(place, error) from error
        self.place = HostPort(place.host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="abcast-endpoint", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _values(query: str) -> Query:
    """Return the values of a query string; none if it has too many."""
    with suppress(ValueError):
        return dict(parse_qsl(query, max_num_fields=_MOST_FIELDS))
    return {}


def _explained(place: HostPort, error: OSError | UnicodeError) -> UsageError | EnvironmentProblem:
    if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"can't listen at {place}: {place.host} is no name or address of this machine.")
    if error.errno == errno.EADDRINUSE:
        return EnvironmentProblem(f"can't listen at {place}: another process has port {place.port}; take another one.")
    return EnvironmentProblem(f"can't listen at {place}: {error.strerror or error}.")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = MOST_CLIENTS

    def __init__(self, family: int, address: Any, answers: Answers, name: str) -> None:
        self.address_family = family
        self.answers = answers
        is_here = ipaddress.ip_address(address[0]).is_loopback
        self.names = frozenset({name.lower(), "localhost", LOOPBACK, "::1", ""}) if is_here else None
        """The hosts that a request may name; None: any."""
        self._clients: dict[int, socket.socket] = {}
        self._changing = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            if len(self._clients) >= MOST_CLIENTS:
                oldest = self._clients.pop(next(iter(self._clients)))
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._clients[id(request)] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._clients.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class has them
        _logger.debug("a client has gone", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server_version = "abcast"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        answer = self._answer()
        body = answer.body.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", answer.policy)
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the base class names it

    def _answer(self) -> HttpAnswer:
        (path, _, query), names = self.path.partition("?"), self.server.names
        host = re.sub(r":\d+$", "", self.headers.get("Host", "")).strip("[]").lower()
        if names is not None and host not in names:
            return HttpAnswer("ask for localhost\n", HTTPStatus.FORBIDDEN)
        answer = self.server.answers.get(path)
        if answer is None:
            return HttpAnswer(f"there is {', '.join(self.server.answers)}\n", HTTPStatus.NOT_FOUND)
        try:
            return answer(_values(query))
        except Exception:
            _logger.exception("no answer to %s", path)
            return HttpAnswer("abcast has failed here: see its log\n", HTTPStatus.INTERNAL_SERVER_ERROR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        _logger.debug(format, *args)
