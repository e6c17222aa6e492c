"""The embedded broker with TLS, users and rights, and each library's login."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.security import Security
from connectors.kafka.topics.topics import create_topics, find_topics
from connectors.kafka.transport import TRANSPORTS
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import KafkaRefused, UsageError
from tests.cli.here import abcast_here
from tests.secure.users import login
from tests.waiting import WAIT

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("name", TRANSPORTS)
def test_the_administrator_may_do_everything(secure_broker: EmbeddedBroker, name: str) -> None:
    known = login(secure_broker)
    connection = Connection(known.bootstrap_servers, security=known.security, transport=name)
    create_topics(connection, "all", ["nyc"])
    producer, consumer = connection.producer(), connection.consumer()
    assert producer.send("abcast.all.forward.nyc", value=b"x", key=b"nyc/a").get(WAIT).offset >= 0
    assert consumer.partitions_for_topic("abcast.all.forward.nyc") == {0}
    producer.close()
    consumer.close()


def test_another_user_sees_and_does_nothing(secure_broker: EmbeddedBroker) -> None:
    create_topics(login(secure_broker), "hidden", ["nyc"])
    nobody = login(secure_broker, "nobody")
    assert find_topics(nobody) == []
    with pytest.raises(KafkaRefused, match=r"User:nobody may not CREATE abcast\.other\.epoch\.nyc"):
        create_topics(nobody, "other", ["nyc"])


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_certificate_whose_key_has_a_password(secure_broker: EmbeddedBroker, name: str, tmp_path: Path) -> None:
    """The broker takes a client's certificate if its authority has signed it; the library must unlock the key."""
    secure = secure_broker.secure
    assert secure is not None
    key, asked, certificate = (str(tmp_path / file) for file in ("key.pem", "asked.pem", "certificate.pem"))
    made = ["openssl", "req", "-new", "-newkey", "rsa:2048", "-keyout", key, "-out", asked, "-passout", "pass:locked"]
    subprocess.run([*made, "-subj", "/CN=client"], check=True, capture_output=True)
    store = ["-keystore", str(secure.directory / "ca.p12"), "-storepass:file", str(secure.directory / "store.password")]
    signed = ["keytool", *store, "-gencert", "-alias", "ca", "-rfc", "-infile", asked, "-outfile", certificate]
    subprocess.run(signed, check=True, capture_output=True)
    known = login(secure_broker)
    table = known.security.model_dump(include={"protocol", "mechanism", "username", "password", "ca_file"})
    shown = Security(**table, key_file=key, certificate_file=certificate, key_password="locked")
    connection = Connection(known.bootstrap_servers, security=shown, transport=name)
    connection.consumer().close()
    with connection.admin() as admin:
        assert admin.describe_cluster()["brokers"]


def test_nothing_is_readable_by_others(secure_broker: EmbeddedBroker) -> None:
    assert secure_broker.secure is not None
    login(secure_broker, "alice")
    for directory in (secure_broker.secure.directory, secure_broker.directory / "node-0"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for file in secure_broker.secure.directory.iterdir():
        assert file.suffix == ".p12" or stat.S_IMODE(file.stat().st_mode) == 0o600, file
    [node] = secure_broker.status().nodes
    command = Path(f"/proc/{node.pid}/cmdline").read_bytes().decode()
    assert "password" not in command
    assert not list(secure_broker.directory.glob("*/format.arguments"))


def test_a_directory_stays_what_it_is(secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert EmbeddedBroker(secure_broker.directory).secure is not None
    with pytest.raises(UsageError, match="with users and passwords, which it keeps"):
        EmbeddedBroker(secure_broker.directory, secure=False)
    done = abcast_here("broker", "start", "--user", "alice", "--dir", tmp_path / "open", cwd=tmp_path)
    assert (done.returncode, "only a secure broker has users" in done.stderr) == (2, True)


def test_what_the_command_says(secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The broker runs already: the users are added, and their files named."""
    place = ("--dir", secure_broker.directory)
    done = abcast_here("broker", "start", "--secure", "--user", "bob", "--user", "bob", *place, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [line.rpartition(" ")[2] for line in done.stdout.splitlines()[1:]]
    assert [Path(file).stem for file in files] == ["admin", "bob"]
    told = json.loads(
        abcast_here("broker", "start", "--secure", "--user", "bob", "--json", *place, cwd=tmp_path).stdout
    )
    assert (told["started"], told["logins"]) == (False, dict(zip(("admin", "bob"), files, strict=True)))
    listed = abcast_here("topics", "list", "--kafka-config", files[0], cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    for wrong in ("broker", "a b", "../x"):
        done = abcast_here("broker", "start", "--user", wrong, *place, cwd=tmp_path)
        assert (done.returncode, "can't be a user" in done.stderr) == (2, True)
