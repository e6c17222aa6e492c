"""How to log in to a Kafka and how to encrypt: said once, in a file, for every library that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ordering.errors import UsageError

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class Security:
    """What a client needs. `ca_file` and `key_file` (a key with its certificates) are PEM files."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    key_file: str = ""

    @classmethod
    def parse(cls, table: object, directory: Path) -> Security:
        """From a table of the sites' file; files are relative to `directory`. Raises UsageError."""
        names = [field.name for field in fields(cls)]
        if not isinstance(table, Mapping) or not all(
            key in names and isinstance(value, str) for key, value in table.items()
        ):
            raise UsageError(f"security is a table of texts, of the keys {', '.join(names)}.")
        files = {key: str(directory / value) for key, value in table.items() if key.endswith("_file")}
        security = cls(**{**table, **files})
        if security.protocol not in _PROTOCOLS or security.mechanism not in _LOGIN_MODULES:
            raise UsageError(
                f"security: protocol is one of {', '.join(_PROTOCOLS)}, mechanism one of {', '.join(_LOGIN_MODULES)}."
            )
        if security.logs_in and not (security.username and security.password_file):
            raise UsageError(f"security: {security.protocol} needs a username and a password_file.")
        return security

    @property
    def logs_in(self) -> bool:
        """Whether a name and a password are asked for."""
        return self.protocol.startswith("SASL_")

    def _password(self) -> str:
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"the password file {self.password_file} can't be read: {error.strerror}.") from error

    def for_python(self) -> dict[str, Any]:
        """kafka-python's settings."""
        if self.protocol == "PLAINTEXT":
            return {}
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if self.logs_in:
            settings["sasl_mechanism"] = self.mechanism
            settings["sasl_plain_username"], settings["sasl_plain_password"] = self.username, self._password()
        if self.ca_file:
            settings["ssl_cafile"] = self.ca_file
        if self.key_file:
            settings["ssl_certfile"] = settings["ssl_keyfile"] = self.key_file
        return settings

    def for_librdkafka(self) -> dict[str, str]:
        """confluent-kafka's settings."""
        if self.protocol == "PLAINTEXT":
            return {}
        settings = {"security.protocol": self.protocol}
        if self.logs_in:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.username"], settings["sasl.password"] = self.username, self._password()
        if self.ca_file:
            settings["ssl.ca.location"] = self.ca_file
        if self.key_file:
            settings["ssl.certificate.location"] = settings["ssl.key.location"] = self.key_file
        return settings

    def for_spark(self) -> dict[str, str]:
        """The settings of Spark's Kafka source and sink."""
        if self.protocol == "PLAINTEXT":
            return {}
        settings = {"kafka.security.protocol": self.protocol}
        if self.logs_in:
            settings["kafka.sasl.mechanism"] = self.mechanism
            settings["kafka.sasl.jaas.config"] = (
                f"{_LOGIN_MODULES[self.mechanism]} required "
                f"username={_quoted(self.username)} password={_quoted(self._password())};"
            )
        for kind, file in (("truststore", self.ca_file), ("keystore", self.key_file)):
            if file:
                settings[f"kafka.ssl.{kind}.type"], settings[f"kafka.ssl.{kind}.location"] = "PEM", file
        return settings


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
