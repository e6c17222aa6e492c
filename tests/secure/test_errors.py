"""A wrong login, or a missing right, is told in one sentence: by the commands, and by `Member`."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.probe import ProbeStep, obstacle, probe, refusal
from connectors.kafka.login.security import Security
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import TRANSPORTS
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import AbcastError, BrokerUnreachable, KafkaRefused
from tests.cli.here import abcast_here
from tests.secure.users import login, login_file

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def group(secure_broker: EmbeddedBroker) -> str:
    create_topics(login(secure_broker), "told", ["nyc"])
    return "told"


def changed(broker: EmbeddedBroker, directory: Path, pattern: str, by: str) -> Path:
    """Return the administrator's file with a mistake in it."""
    text, count = re.subn(pattern, by, login_file(broker, "admin").read_text(encoding="utf-8"))
    assert count
    file = directory / "wrong.properties"
    file.touch(0o600)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def foreign_ca(tmp_path: Path) -> str:
    file = str(tmp_path / "foreign.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "/dev/null", "-out", file]
    subprocess.run([*made, "-subj", "/CN=other"], check=True, capture_output=True)
    return file


LOCATION = r"ssl\.truststore\.location=.*"


class TestLogin:
    """Each mistake by a command and, with both libraries, by a member: in a moment, not after a time-out."""

    def check(self, file: Path, code: int, says: str, tmp_path: Path) -> None:
        done = abcast_here("publish", "-g", "told", "-m", "nyc/a", "--kafka-config", file, cwd=tmp_path, text=b"x\n")
        assert done.returncode == code, done.stderr
        [sentence] = done.stderr.splitlines()
        assert re.search(says, sentence), sentence
        for name in TRANSPORTS:
            known = ClientConfiguration(kafka_config=file).connection(3.0)
            with pytest.raises(AbcastError, match=says):
                Member("told", "nyc/a", connection=replace(known, transport=name))

    def test_a_wrong_password(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        file = changed(secure_broker, tmp_path, 'password="[^"]*"', 'password="wrong-secret"')
        self.check(file, 1, "does not let in admin with SCRAM-SHA-512: the username or the password is wrong", tmp_path)

    def test_a_certificate_that_is_not_trusted(
        self, secure_broker: EmbeddedBroker, tmp_path: Path, foreign_ca: str
    ) -> None:
        file = changed(secure_broker, tmp_path, LOCATION, f"ssl.truststore.location={foreign_ca}")
        self.check(file, 1, r"the certificate of .* is not trusted by .*foreign\.pem", tmp_path)

    def test_another_name(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        file = changed(secure_broker, tmp_path, r"=127\.0\.0\.1:", "=127.1:")
        self.check(file, 1, r"the certificate of 127\.1:\d+ is for another name than 127\.1", tmp_path)

    def test_a_missing_file(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        file = changed(secure_broker, tmp_path, LOCATION, "ssl.truststore.location=/nowhere/ca.pem")
        self.check(file, 2, r"the CA file /nowhere/ca\.pem can't be read: No such file", tmp_path)

    def test_a_file_that_is_no_certificate(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        (tmp_path / "no.pem").write_text("no certificate\n")
        file = changed(secure_broker, tmp_path, LOCATION, f"ssl.truststore.location={tmp_path / 'no.pem'}")
        self.check(file, 2, r"no\.pem can't be used for TLS", tmp_path)

    def test_another_mechanism(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        file = changed(secure_broker, tmp_path, "SCRAM-SHA-512", "PLAIN")
        self.check(file, 1, "does not take the mechanism PLAIN", tmp_path)

    def test_a_plaintext_client(self, secure_broker: EmbeddedBroker) -> None:
        with pytest.raises(KafkaRefused, match="wants TLS, and the client is configured for PLAINTEXT"):
            Member("told", "nyc/a", bootstrap_servers=secure_broker.bootstrap_servers, connect_timeout=1.0)


class TestProbe:
    """Servers that are away, or not Kafka."""

    @pytest.fixture
    def silent(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield f"127.0.0.1:{server.getsockname()[1]}"

    def test_steps(self, silent: str) -> None:
        tls = Security(protocol="SSL")
        [nobody] = probe("127.0.0.1:1", tls)
        assert (nobody.passed, nobody.failed, nobody.is_refusal) == ((ProbeStep.NAME,), ProbeStep.TCP, False)
        [unknown] = probe("no.such.host.invalid:9092", tls)
        assert (unknown.passed, unknown.failed) == ((), ProbeStep.NAME)
        [mute] = probe(silent, tls, timeout_s=0.3)
        assert (mute.passed, mute.failed, mute.is_refusal) == ((ProbeStep.NAME, ProbeStep.TCP), ProbeStep.TLS, False)
        assert refusal([nobody, unknown, mute]) == ""
        assert [obstacle(found) for found in ([nobody], [nobody, unknown])] == ["", ""]
        assert "can't be resolved" in obstacle([unknown])
        assert "TLS handshake" in obstacle([nobody, mute])

    def test_an_open_broker_has_no_tls(self, broker: EmbeddedBroker) -> None:
        [found] = probe(broker.bootstrap_servers, Security(protocol="SSL"))
        assert found.failed is ProbeStep.TLS
        [open_] = probe(broker.bootstrap_servers, Security())
        assert open_.failed is None
        with pytest.raises(BrokerUnreachable, match="no Kafka broker answers"):
            Connection("127.0.0.1:1", timeout=0.3, security=Security(protocol="SSL")).consumer()


class TestRights:
    def test_a_command(self, secure_broker: EmbeddedBroker, group: str, tmp_path: Path) -> None:
        nobody = login_file(secure_broker, "nobody")
        for command in (
            ("publish", "-m", "nyc/a", "-g", group),
            ("deliver", "-m", "nyc/a", "-g", group),
            ("topics", "create", "-g", "other"),
        ):
            done = abcast_here(*command, "--kafka-config", nobody, cwd=tmp_path, text=b"x\n")
            assert done.returncode == 1, done.stderr
            [sentence] = done.stderr.splitlines()
            assert re.match(
                r"abcast: User:nobody may not (DESCRIBE|READ|WRITE|CREATE) abcast\.\w+\.\w+\.\w+: ", sentence
            )

    @pytest.mark.parametrize("name", TRANSPORTS)
    def test_a_member(self, secure_broker: EmbeddedBroker, group: str, name: str) -> None:
        known = login(secure_broker, "nobody")
        with pytest.raises(KafkaRefused, match=r"User:nobody may not DESCRIBE abcast\.told\.forward\.nyc"):
            Member(group, "nyc/a", connection=Connection(known.bootstrap_servers, 5.0, known.security, name))
