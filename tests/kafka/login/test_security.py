"""Read the login from each of its places, pass it to each library, and show no secret."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest

from connectors import Member
from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import read_sites
from connectors.kafka.login.dialects import for_kafka_python, for_librdkafka, for_spark
from connectors.kafka.login.properties import parse_properties, read_properties
from connectors.kafka.login.security import Security
from connectors.kafka.transport import kafka_python, librdkafka_client
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import UsageError
from tests.cli.here import abcast_here

SECRET = "open sesame"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----"
KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nREVG\n-----END ENCRYPTED PRIVATE KEY-----"
SCRAM = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "alice"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a directory with files of keys, and without another configuration."""
    (tmp_path / "ca.pem").write_text(f"# of ours\n{CERTIFICATE}\n", encoding="utf-8")
    (tmp_path / "key.pem").write_text(f"{KEY}\n{CERTIFICATE}\n", encoding="utf-8")
    (tmp_path / "pw").write_text('se"cret\n', encoding="utf-8")
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    for name in ("ABCAST_CONFIG", "ABCAST_BOOTSTRAP_SERVERS", "ABCAST_KAFKA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class TestLibraries:
    def test_scram_and_mutual_tls(self, here: Path) -> None:
        table = {**SCRAM, "password_file": "pw", "ca_file": "ca.pem", "key_file": "key.pem", "key_password": SECRET}
        security = Security.parse(table, here)
        key = str(here / "key.pem")
        assert for_kafka_python(security) == {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": 'se"cret',
            "ssl_cafile": str(here / "ca.pem"),
            "ssl_certfile": key,
            "ssl_keyfile": key,
            "ssl_password": SECRET,
        }
        assert for_librdkafka(security) == {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": 'se"cret',
            "ssl.ca.location": str(here / "ca.pem"),
            "ssl.certificate.location": key,
            "ssl.key.location": key,
            "ssl.key.password": SECRET,
        }
        assert Connection("h:1", security=security, client_id="abcast-run").spark_options() == {
            "kafka.bootstrap.servers": "h:1",
            "kafka.client.id": "abcast-run",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="se\\"cret";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": CERTIFICATE,
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
            "kafka.ssl.keystore.key": KEY,
            "kafka.ssl.key.password": SECRET,
        }

    def test_nothing_is_said_to_a_plain_broker(self) -> None:
        assert for_kafka_python(Security()) == for_librdkafka(Security()) == for_spark(Security()) == {}

    def test_tokens(self) -> None:
        common = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token_url": "https://idp/token"}
        security = Security(**common, username="me", password=SECRET, token_scope="kafka")
        assert "sasl_oauth_token_provider" in for_kafka_python(security)
        assert for_librdkafka(security)["sasl.oauthbearer.method"] == "oidc"
        spark = for_spark(security)
        assert spark["kafka.sasl.jaas.config"].endswith(f'clientId="me" clientSecret="{SECRET}" scope="kafka";')
        assert spark["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://idp/token"

    def test_kerberos_and_aws(self) -> None:
        kerberos = Security(
            protocol="SASL_SSL", mechanism="GSSAPI", username="me@REALM", keytab="/k", kerberos_service="k"
        )
        assert for_kafka_python(kerberos)["sasl_kerberos_service_name"] == "k"
        assert for_librdkafka(kerberos)["sasl.kerberos.keytab"] == "/k"
        assert 'keyTab="/k" principal="me@REALM"' in for_spark(kerberos)["kafka.sasl.jaas.config"]
        ticket = Security(protocol="SASL_PLAINTEXT", mechanism="GSSAPI")
        assert "useTicketCache" in for_spark(ticket)["kafka.sasl.jaas.config"]
        aws = Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM")
        assert for_kafka_python(aws) == {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}
        assert for_spark(aws)["kafka.sasl.jaas.config"].endswith("IAMLoginModule required;")
        with pytest.raises(UsageError, match="ABCAST_TRANSPORT=kafka-python"):
            for_librdkafka(aws)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"protocol": "TLS"}, "protocol is one of PLAINTEXT, SSL"),
        ({"mechanism": "MD5"}, "mechanism is one of PLAIN, SCRAM"),
        ({"user": "alice"}, "user is unknown"),
        ({"protocol": 1}, "protocol is one of"),
        ({"password": 17}, "password is a text"),
        ("SSL", "is a table of texts"),
        (SCRAM, "needs a username, and a password"),
        ({**SCRAM, "password": SECRET, "password_file": "pw"}, "password or password_file, not both"),
        ({"certificate_file": "x"}, "needs the key_file"),
        ({**SCRAM, "mechanism": "OAUTHBEARER", "password": SECRET, "token_url": "file:///x"}, "token_url, https"),
        ({"protocol": "SASL_PLAINTEXT", "mechanism": "AWS_MSK_IAM"}, "needs the protocol SASL_SSL"),
    ],
)
def test_what_can_not_be(table: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Security.parse(table, tmp_path)
    assert SECRET not in str(caught.value)


def test_brokers_see_who_is_there() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with Member("g", "nyc/alice", connection=connection) as alice:
        for settings, name in ((kafka_python, "client_id"), (librdkafka_client, "client.id")):
            assert settings.client_settings(alice.connection)[name] == "abcast-nyc/alice"
            assert settings.client_settings(alice.connection.named("other"))[name] == "abcast-nyc/alice"


@pytest.mark.parametrize("name", ["ca_file", "key_file", "password_file"])
def test_a_file_that_is_missing(name: str, here: Path) -> None:
    password = {} if name == "password_file" else {"password": SECRET}
    security = Security.parse({**SCRAM, **password, name: "nowhere.pem"}, here)
    for told in (for_kafka_python, for_librdkafka, for_spark):
        with pytest.raises(UsageError, match=r"file .*/nowhere\.pem can't be read: No such file"):
            told(security)


def test_java_is_given_no_key_that_it_can_not_read(here: Path) -> None:
    (here / "old.pem").write_text(KEY.replace("ENCRYPTED ", "RSA "), encoding="utf-8")
    table = {"protocol": "SSL", "key_file": "old.pem", "certificate_file": "ca.pem"}
    with pytest.raises(UsageError, match="openssl pkcs8 -topk8"):
        for_spark(Security.parse(table, here))
    with pytest.raises(UsageError, match="no certificate in PEM form"):
        for_spark(Security.parse({"protocol": "SSL", "ca_file": "old.pem"}, here))


def test_secrets_are_not_shown() -> None:
    security = Security(**SCRAM, password=SECRET, key_password=SECRET)
    connection = Connection("h:1", security=security)
    assert SECRET not in f"{security} {security!r} {connection!r} {security.model_dump()} {security.model_dump_json()}"
    assert pickle.loads(pickle.dumps(connection)) == connection, "it goes to Spark's workers"
    assert hash(connection) == hash(Connection("h:1", security=Security(**SCRAM, password=SECRET, key_password=SECRET)))
    assert connection.named("abcast-x") == connection, "members of one process share what they use"


def test_kafka_pythons_log_has_no_password(caplog: pytest.LogCaptureFixture) -> None:
    """Also where an application logs everything. Other messages of the library are logged as before."""
    for name in (None, "kafka"):  # a command of ours that has run in this process has set the second
        caplog.set_level(logging.DEBUG, name)
    settings = for_kafka_python(Security(protocol="SASL_PLAINTEXT", username="alice", password="hunter2"))
    with pytest.raises(KafkaError):
        KafkaAdminClient(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=1, **settings)
    protocol = KafkaProtocol(client_id="c")
    for request in (SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2", version=1), ApiVersionsRequest(version=0)):
        protocol.send_request(request)
        protocol.send_bytes()
        logging.getLogger("kafka.net.connection").debug("%s Request %d: %s", "here", 1, request)
    assert "hunter2" not in caplog.text
    assert "ApiVersionsRequest" in caplog.text


def test_a_file_that_all_can_read_is_warned_of(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_to_all = here / "open"
    open_to_all.write_text(SECRET, encoding="utf-8")
    open_to_all.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        for name in ("pw", "open", "open"):
            Security.parse({**SCRAM, "password_file": name}, here).secret("password")
    [warning] = caplog.messages
    assert f"chmod 600 {open_to_all}" in warning
    assert SECRET not in warning


class TestPropertiesFile:
    def test_what_java_reads(self) -> None:
        text = "# no\n! no\n a = b \\\n    c\nd:e\nf g\nh=\\u0041\\=\\\\\nempty=\n"
        assert dict(parse_properties(text)) == {"a": "b c", "d": "e", "f": "g", "h": "A=\\", "empty": ""}

    @pytest.mark.parametrize(
        ("written", "value"),
        [
            (r"D:\\ubeef01", r"D:\ubeef01"),
            (r"\u00e9\u0020", "\u00e9 "),
            (r"\ud83d\ude00", "\U0001f600"),
            (r"\u005cn", r"\n"),
        ],
    )
    def test_escapes(self, written: str, value: str) -> None:
        """`java.util.Properties` reads the same values."""
        assert dict(parse_properties(f"p={written}")) == {"p": value}

    @pytest.mark.parametrize("end", ["", "\n", "\\", "\\\n"])
    def test_the_last_line(self, end: str) -> None:
        """A backslash at its end continues nothing. Only line feeds and carriage returns end a line."""
        assert dict(parse_properties(f"a=b\rp=x\u2028\x0by{end}")) == {"a": "b", "p": "x\u2028\x0by"}

    def test_of_kafka(self, here: Path) -> None:
        file = here / "client.properties"
        file.write_text(
            "bootstrap.servers=h:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nacks=all\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
            '  username="alice" password="se\\\\"c=r;et";\n'
            "ssl.truststore.type=PEM\nssl.truststore.location=ca.pem\n"
        )
        assert read_properties(file) == {
            "bootstrap_servers": "h:9093",
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "username": "alice",
            "password": 'se"c=r;et',
            "ca_file": "ca.pem",
        }

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("ssl.truststore.location=/etc/store.jks", "export it as PEM"),
            ("ssl.endpoint.identification.algorithm=", "must have its name, always"),
        ],
    )
    def test_what_can_not_be(self, line: str, says: str, here: Path) -> None:
        (here / "client.properties").write_text(f"{line}\n")
        with pytest.raises(UsageError, match=says):
            read_properties(here / "client.properties")


class TestWhereItIsSaid:
    def test_what_counts_most(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (here / "abcast.toml").write_text(
            'bootstrap_servers = "toml:1"\n[kafka]\nprotocol = "SASL_SSL"\nmechanism = "PLAIN"\nusername = "toml"\n'
            'password_file = "pw"\nca_file = "ca.pem"\n'
        )
        assert ClientConfiguration().security.username == "toml"
        assert ClientConfiguration().security.ca_file == str(here / "ca.pem")
        (here / "client.properties").write_text("bootstrap.servers=file:1\nsasl.username=file\n")
        monkeypatch.setenv("ABCAST_KAFKA_PASSWORD", SECRET)
        found = ClientConfiguration(kafka_config=here / "client.properties")
        assert (found.security.username, found.connection().bootstrap_servers) == ("file", "file:1")
        assert found.security.secret("password") == SECRET, "it counts more than the file of the table"
        monkeypatch.setenv("ABCAST_KAFKA_USERNAME", "variable")
        monkeypatch.setenv("ABCAST_KAFKA_CONFIG", "client.properties")
        found = ClientConfiguration("argument:1")
        assert found.settings["username"] == ("variable", "ABCAST_KAFKA_USERNAME")
        assert found.settings["mechanism"].source == "abcast.toml [kafka]"
        assert found.settings["bootstrap_servers"] == ("argument:1", "argument")

    def test_unknown(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (here / "abcast.toml").write_text('[kafka]\npasword = "x"\n')
        with pytest.raises(UsageError, match=r"kafka\.pasword"):
            ClientConfiguration()
        (here / "abcast.toml").write_text("[kafka]\npassword = 17\n")
        with pytest.raises(UsageError, match=r"password in the configuration file abcast\.toml is a text, not that"):
            ClientConfiguration()
        (here / "abcast.toml").unlink()
        monkeypatch.setenv("ABCAST_KAFKA_PASWORD", SECRET)
        with pytest.raises(UsageError, match="ABCAST_KAFKA_PASWORD is unknown"):
            ClientConfiguration()

    def test_sites(self, here: Path) -> None:
        """A site with a table has all its settings from there; the others have the common ones."""
        (here / "sites.toml").write_text(
            '[sites.a]\nbootstrap_servers = "a:1"\n[sites.b]\nbootstrap_servers = "b:1"\n'
            '[sites.b.kafka]\nprotocol = "SSL"\nca_file = "ca.pem"\n'
        )
        common = Security(**SCRAM, password=SECRET)
        sites = read_sites(here / "sites.toml", common, "abcast-run")
        assert sites.connection("a").security == common
        assert sites.connection("b").security == Security(protocol="SSL", ca_file=str(here / "ca.pem"))
        assert sites.connection("b").client_id == "abcast-run"

    def test_config_show(self, here: Path) -> None:
        table = '[kafka]\nprotocol = "SASL_SSL"\nusername = "alice"\n'
        (here / "abcast.toml").write_text(f'site = "nyc"\n{table}[publish]\ntimeout = 3\n')
        variables = {"ABCAST_KAFKA_PASSWORD": SECRET, "ABCAST_DATA": "/d"}
        done = abcast_here("config", "show", "--bootstrap-servers", "h:1", cwd=here, variables=variables)
        assert done.returncode == 0, done.stderr
        shown = abcast_here("config", "show", "--json", cwd=here, variables=variables)
        assert SECRET not in done.stdout + done.stderr + shown.stdout
        rows = {row["name"]: (row["value"], row["from"]) for row in map(json.loads, shown.stdout.splitlines())}
        assert rows["bootstrap_servers"] == ("127.0.0.1:9092", "default")
        variables |= {"ABCAST_BOOTSTRAP_SERVERS": "e:1"}
        assert '"e:1", "from": "ABCAST_BOOTSTRAP_SERVERS"' in (
            abcast_here("config", "show", "--json", cwd=here, variables=variables).stdout
        )
        assert rows["kafka.password"] == ("**********", "ABCAST_KAFKA_PASSWORD")
        assert rows["kafka.username"] == ("alice", "abcast.toml [kafka]")
        assert rows["kafka.mechanism"] == ("PLAIN", "default")
        assert rows["data"] == ("/d", "ABCAST_DATA")
        assert rows["site"] == ("nyc", "abcast.toml")
        assert rows["publish.timeout"] == ("3", "abcast.toml")
