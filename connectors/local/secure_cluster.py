"""Secure the embedded broker: a certificate authority of its own, TLS, users with passwords, and Kafka's authorizer,
which denies everything that is not allowed.

Below the cluster's directory, for its owner alone:

    secure/ca.pem             the certificate that clients trust
    secure/ca.p12             the authority's key
    secure/broker.p12         the brokers' key and certificate (127.0.0.1 and localhost)
    secure/store.password     of both stores
    secure/NAME.properties    the login of the user NAME: for `--kafka-config`, and for Kafka's own tools

`admin` may do everything, and grants others their rights (`abcast acl`). Nodes log in to each other as `broker`. No
secret is ever an argument of a process.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from kafka.errors import KafkaError

from connectors.kafka.login.dialects import jaas
from connectors.kafka.transport.kafka_python import AdminClient
from ordering.base.errors import EnvironmentProblem, UsageError

ADMIN, BROKER = "admin", "broker"
MECHANISM = "SCRAM-SHA-512"
LISTENER = "SASL_SSL"
_ITERATIONS = 4096
_DAYS = "3650"
_KEYTOOL_TIMEOUT_S = 60
_NAME_OF_NODES = "abcast-broker"
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PASSWORD = re.compile(r'password="([^"]*)"')


class SecureCluster:
    """The secrets of the cluster in a directory."""

    def __init__(self, directory: Path) -> None:
        """Create no file yet."""
        self.directory = directory / "secure"
        self.ca_file = self.directory / "ca.pem"
        self._password_file = self.directory / "store.password"

    def login(self, user: str) -> Path:
        """Return the properties file with which the user logs in."""
        return self.directory / f"{user}.properties"

    def prepare(self, java: Path) -> None:
        """Make the missing keys, certificates, and the two users of every cluster. Raises EnvironmentProblem."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if not self._password_file.exists():
            _write(self._password_file, secrets.token_hex(16))
        if not self.ca_file.exists():
            self._make_certificates(_keytool(java))
        for user in (ADMIN, BROKER):
            if not self.login(user).exists():
                self._write_login(user, secrets.token_hex(16), "")

    def _make_certificates(self, keytool: Path) -> None:
        """Make the authority, then the nodes' certificate; `ca.pem` comes last, as the sign of completeness."""
        for name in ("ca.p12", "broker.p12"):
            (self.directory / name).unlink(missing_ok=True)
        ca, nodes = self._store(keytool, "ca"), self._store(keytool, "broker")
        key = ["-keyalg", "EC", "-groupname", "secp256r1", "-validity", _DAYS]
        _run([*ca, "-genkeypair", "-alias", "ca", "-dname", "CN=abcast-ca", "-ext", "bc:c", *key])
        _run([*nodes, "-genkeypair", "-alias", "broker", "-dname", f"CN={_NAME_OF_NODES}", *key])
        asked = _run([*nodes, "-certreq", "-alias", "broker"])
        names = "san=ip:127.0.0.1,dns:localhost"
        signed = _run([*ca, "-gencert", "-alias", "ca", "-rfc", "-validity", _DAYS, "-ext", names], asked)
        authority = _run([*ca, "-exportcert", "-alias", "ca", "-rfc"])
        _run([*nodes, "-importcert", "-alias", "ca", "-noprompt"], authority)
        _run([*nodes, "-importcert", "-alias", "broker"], signed + authority)
        _write(self.ca_file, authority.decode("ascii"))

    def _store(self, keytool: Path, name: str) -> list[str]:
        store = ["-keystore", str(self.directory / f"{name}.p12"), "-storetype", "PKCS12"]
        return [str(keytool), "-J-XX:TieredStopAtLevel=1", *store, "-storepass:file", str(self._password_file)]

    def server_settings(self) -> dict[str, str]:
        """Return the settings that a node has in addition to an open cluster's."""
        password = self._password_file.read_text(encoding="ascii")
        return {
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": _jaas(
                BROKER, self._password(BROKER)
            ),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.directory / "broker.p12"),
            "ssl.keystore.password": password,
            "ssl.key.password": password,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            # A client may show a certificate; a node must show the nodes' own to the controllers.
            "ssl.client.auth": "requested",
            "listener.name.controller.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:{BROKER};User:CN={_NAME_OF_NODES}",
            "allow.everyone.if.no.acl.found": "false",
        }

    def first_users(self) -> list[str]:
        """Return the arguments with which `kafka-storage format` makes the first users."""
        return [f"--add-scram={MECHANISM}=[name={user},password={self._password(user)}]" for user in (ADMIN, BROKER)]

    def client_settings(self) -> dict[str, Any]:
        """Return kafka-python's settings for the administrator's login."""
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": ADMIN,
            "sasl_plain_password": self._password(ADMIN),
            "ssl_cafile": str(self.ca_file),
        }

    def add_users(self, bootstrap_servers: str, names: Iterable[str]) -> list[Path]:
        """Add those among `names` that have no login file; return the login file of each name.

        Raises UsageError, EnvironmentProblem.
        """
        wanted = list(names)
        for name in wanted:
            if not _USER.fullmatch(name) or name in (BROKER,):
                raise UsageError(f"{name!r} can't be a user: take letters, digits, `.`, `_` and `-`, and not {BROKER}.")
        missing = {name: secrets.token_hex(16) for name in wanted if not self.login(name).exists()}
        if missing:
            changes = [
                UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, password, iterations=_ITERATIONS)
                for name, password in missing.items()
            ]
            try:
                servers = bootstrap_servers.split(",")
                with closing(AdminClient(bootstrap_servers=servers, **self.client_settings())) as admin:
                    refused = {name: why for name, why in admin.alter_user_scram_credentials(changes).items() if why}
            except KafkaError as error:
                raise EnvironmentProblem(f"the users {', '.join(missing)} could not be added: {error!r}.") from error
            if refused:
                raise EnvironmentProblem(f"the broker refuses users: {refused}.")
            for name, password in missing.items():
                self._write_login(name, password, bootstrap_servers)
        return [self.login(name) for name in wanted]

    def say_where(self, bootstrap_servers: str) -> None:
        """Write the brokers' present addresses into all users' files."""
        for file in self.directory.glob("*.properties"):
            text = file.read_text(encoding="utf-8")
            moved = re.sub(r"(?m)^bootstrap\.servers=.*$", f"bootstrap.servers={bootstrap_servers}", text)
            if moved != text:
                _write(file, moved)

    def _password(self, user: str) -> str:
        found = _PASSWORD.search(self.login(user).read_text(encoding="utf-8"))
        if found is None:
            raise EnvironmentProblem(f"{self.login(user)} has no password any more: restore it, or take a new --dir.")
        return found[1]

    def _write_login(self, user: str, password: str, bootstrap_servers: str) -> None:
        lines = [
            f"bootstrap.servers={bootstrap_servers}",
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={MECHANISM}",
            f"sasl.jaas.config={_jaas(user, password)}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.ca_file}".replace("\\", "\\\\"),
        ]
        _write(self.login(user), "\n".join(lines) + "\n")


def _keytool(java: Path) -> Path:
    """Return the keytool beside `java`, or beside the target of its link."""
    beside = java.with_name("keytool")
    return beside if beside.exists() else java.resolve().with_name("keytool")


def argument_file(file: Path, arguments: Iterable[str]) -> str:
    """Write arguments to a file that only its owner can read; return the argument with which `java` reads it."""
    quoted = ('"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in arguments)
    _write(file, "\n".join(quoted) + "\n")
    return f"@{file}"


def _jaas(user: str, password: str) -> str:
    return jaas(MECHANISM, {"username": user, "password": password})


def _write(file: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner from the first byte on."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text)
    new.replace(file)


def _run(command: list[str], standard_input: bytes = b"") -> bytes:
    try:
        done = subprocess.run(
            command, input=standard_input, capture_output=True, timeout=_KEYTOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{command[0]} does not run ({error}): a whole JDK or JRE has it.") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        raise EnvironmentProblem(f"{command[0]} made no certificate: {lines[-1] if lines else 'no reason given'}")
    return done.stdout
