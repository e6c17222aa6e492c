"""Find out why Kafka can't be reached: try the server's name, the TCP connection, TLS and the login, in this order.

A Kafka client reports each of these failures as "no broker answers". The probe runs when a client gets no answer, and
before the first login of a process: a wrong password is then tried once, not until the timeout.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kafka.errors import KafkaError
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from connectors.kafka.login.configuration import check_servers
from connectors.kafka.login.dialects import for_kafka_python
from connectors.kafka.login.security import Security
from ordering.base.errors import AbcastError, UsageError

TIMEOUT_S = 3.0
"""The most that each step may take."""
MOST_SERVERS = 3
_ALERT_S = 0.1
_DEFAULT_PORT = 9092


class ProbeStep(Enum):
    """The steps of a probe, in order. Without SASL, the login is any answer to a Kafka request."""

    NAME = "name"
    TCP = "TCP"
    TLS = "TLS"
    LOGIN = "login"


class Finding(NamedTuple):
    """The result for one server: the steps that passed, and the one that failed (None if all passed), with a sentence.

    `is_refusal`: the server answered, and refused. Else it may be down.
    """

    server: str
    passed: tuple[ProbeStep, ...]
    failed: ProbeStep | None = None
    sentence: str = ""
    is_refusal: bool = False


class _Failed(Exception):
    def __init__(self, sentence: str, *, is_refusal: bool = True) -> None:
        super().__init__(sentence)
        self.is_refusal = is_refusal


def probe(servers: str, security: Security, timeout_s: float = TIMEOUT_S) -> list[Finding]:
    """Probe the first MOST_SERVERS servers. Raises UsageError for files that can't be read, or used for TLS."""
    security.check_files()
    each = check_servers(servers)[:MOST_SERVERS]
    return [_try(server, security, min(timeout_s, TIMEOUT_S)) for server in each]


def refusal(findings: Sequence[Finding]) -> str:
    """Return the first refusal, as a sentence; "" if a server lets the client in, or none refuses it."""
    if any(found.failed is None for found in findings):
        return ""
    return next((found.sentence for found in findings if found.is_refusal), "")


def obstacle(findings: Sequence[Finding]) -> str:
    """Return the sentence to show if no server lets the client in: a failure after TCP, or that no name resolves.

    "" otherwise.
    """
    if any(found.failed is None for found in findings):
        return ""
    names = [found.sentence for found in findings if found.failed is ProbeStep.NAME]
    other = [found.sentence for found in findings if found.failed not in (ProbeStep.NAME, ProbeStep.TCP)]
    return next(iter(other), names[0] if len(names) == len(findings) else "")


def _try(server: str, security: Security, timeout_s: float) -> Finding:
    passed: list[ProbeStep] = []
    try:
        for step in _steps(server, security, timeout_s):
            passed.append(step)
    except _Failed as failure:
        steps = list(ProbeStep) if security.encrypts else [ProbeStep.NAME, ProbeStep.TCP, ProbeStep.LOGIN]
        return Finding(server, tuple(passed), steps[len(passed)], str(failure), failure.is_refusal)
    return Finding(server, tuple(passed))


def _steps(server: str, security: Security, timeout_s: float) -> Iterator[ProbeStep]:
    """Yield each step that passed. Raises _Failed."""
    host, port = _parts(server)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _Failed(f"the name {host} can't be resolved: {error.strerror or error}.", is_refusal=False) from None
    yield ProbeStep.NAME
    with _connected(server, timeout_s) as connection:
        yield ProbeStep.TCP
        if security.encrypts:
            with _handshake(connection, server, security, timeout_s) as encrypted:
                yield ProbeStep.TLS
                _log_in(encrypted, server, security, timeout_s)
        elif _speaks_tls(server, timeout_s):
            raise _Failed(
                f"{server} wants TLS, and the client is configured for {security.protocol}: set protocol to "
                f"{'SASL_SSL' if security.logs_in else 'SSL or SASL_SSL'} (`abcast config show`)."
            )
        else:
            _log_in(connection, server, security, timeout_s)
    yield ProbeStep.LOGIN


def _parts(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":") if not server.endswith("]") and ":" in server else (server, "", "")
    return host.strip("[]"), int(port or _DEFAULT_PORT)


def _connected(server: str, timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection(_parts(server), timeout=timeout_s)
    except OSError as error:
        raise _Failed(f"{server} does not answer: {error.strerror or error}.", is_refusal=False) from None


def _context(security: Security) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=security.ca_file or None)
    if security.key_file:
        context.load_cert_chain(security.certificate, security.key_file, lambda: security.secret("key_password"))
    return context


def _handshake(connection: socket.socket, server: str, security: Security, timeout_s: float) -> ssl.SSLSocket:
    host, _ = _parts(server)
    try:
        context = _context(security)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (security.ca_file, security.certificate, security.key_file)))
        why = "is the key's password right?" if security.key_file else "it must be certificates in PEM form."
        raise UsageError(f"{files} can't be used for TLS ({_reason(error)}): {why}") from None
    try:
        encrypted = context.wrap_socket(connection, server_hostname=host)
        # With TLS 1.3, a server that requires a client certificate says so only after the handshake.
        encrypted.settimeout(min(_ALERT_S, timeout_s))
        with contextlib.suppress(TimeoutError):
            if not encrypted.recv(1):
                raise ConnectionResetError("it hung up")
        return encrypted
    except ssl.SSLCertVerificationError as error:
        raise _Failed(_certificate_sentence(error, server, host, security)) from None
    except ssl.SSLError as error:
        if "EOF" in str(error).upper():
            raise _Failed(f"{server} broke off the TLS handshake: does it speak TLS?", is_refusal=False) from None
        if "WRONG_VERSION_NUMBER" in str(error):
            raise _Failed(f"{server} speaks no TLS, and the client is configured for {security.protocol}.") from None
        if "CERTIFICATE_REQUIRED" in str(error).upper() or "certificate required" in str(error):
            raise _Failed(f"{server} wants a certificate of the client: set key_file (and certificate_file).") from None
        raise _Failed(f"{server} refuses TLS: {_reason(error)}.") from None
    except TimeoutError:
        raise _Failed(f"{server} does not answer to a TLS handshake: does it speak TLS?", is_refusal=False) from None
    except OSError:
        raise _Failed(f"{server} broke off the TLS handshake: does it speak TLS?", is_refusal=False) from None


def _certificate_sentence(error: ssl.SSLCertVerificationError, server: str, host: str, security: Security) -> str:
    why = error.verify_message or _reason(error)
    if "ismatch" in why or "not valid for" in why:
        return f"the certificate of {server} is for another name than {host}: use the name that it has."
    trusted = f"by {security.ca_file}" if security.ca_file else "by this system; name its authority with ca_file"
    if "expired" in why:
        return f"the certificate of {server} has expired."
    return f"the certificate of {server} is not trusted {trusted} ({why})."


def _speaks_tls(server: str, timeout_s: float) -> bool:
    """Whether the server answers a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent to it
    with _connected(server, timeout_s) as connection:
        connection.settimeout(min(timeout_s, 1.0))
        try:
            with context.wrap_socket(connection):
                return True
        except ssl.SSLError as error:
            return "ALERT" in str(error).upper()
        except OSError:
            return False


def _log_in(connection: socket.socket, server: str, security: Security, timeout_s: float) -> None:
    """Exchange Kafka's first requests, and log in if SASL is configured.

    Not by kafka-python's client, which loses a broker's answer if the broker hangs up right after it. Raises _Failed.
    """
    connection.settimeout(timeout_s)
    parser = KafkaProtocol(client_id="abcast-probe")

    def ask(request: Any) -> Any:
        parser.send_request(request)
        connection.sendall(parser.send_bytes())
        while received := connection.recv(65_536):
            for _, response in parser.receive_bytes(received):
                return response
        raise ConnectionResetError("it hung up")

    try:
        if not security.logs_in:
            ask(ApiVersionsRequest(version=0))
            return
        handshake = ask(SaslHandshakeRequest(version=1, mechanism=security.mechanism))
        if security.mechanism not in handshake.mechanisms:
            accepted = ", ".join(handshake.mechanisms)
            raise _Failed(f"{server} does not take the mechanism {security.mechanism}, but {accepted}.")
        host, _ = _parts(server)
        mechanism = get_sasl_mechanism(security.mechanism)(host=host, **for_kafka_python(security))
        while not mechanism.is_done():
            answer = ask(SaslAuthenticateRequest(version=1, auth_bytes=mechanism.auth_bytes()))
            if answer.error_code:
                raise _not_let_in(server, security)
            mechanism.receive(answer.auth_bytes)
        if not mechanism.is_authenticated():
            raise _not_let_in(server, security)
    except AbcastError as error:  # from the token server, for example
        raise _Failed(str(error)) from None
    except (TimeoutError, ConnectionError, ssl.SSLError) as error:
        what = "did not answer to the login" if security.logs_in else "does not answer as a Kafka broker does"
        raise _Failed(f"{server} {what} ({_reason(error)}): is that its port?", is_refusal=False) from None
    except (KafkaError, RuntimeError, ValueError, OSError) as error:
        # A missing library, a server that is no Kafka, or an answer signed by a broker of another name.
        raise _Failed(f"the login to {server} with {security.mechanism} can't be made: {error}.") from None


def _not_let_in(server: str, security: Security) -> _Failed:
    who = f"{security.username or 'this user'} with {security.mechanism}"
    return _Failed(f"{server} does not let in {who}: the username or the password is wrong.")


def _reason(error: BaseException) -> str:
    return str(getattr(error, "reason", "") or getattr(error, "strerror", "") or error).replace("_", " ").lower()
