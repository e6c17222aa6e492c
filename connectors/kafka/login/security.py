"""Login and encryption for Kafka, declared once for all client libraries (`dialects` translates).

A secret is given as a text, or in a file of its own. It is read when a client is made, and never shown.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from ordering.base.errors import UsageError

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"]

_CHOICES = {"protocol": get_args(Protocol), "mechanism": get_args(Mechanism)}
_WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SECRETS = ("password", "key_password")
"""Each may instead be given as a file's name: `password_file`, `key_password_file`."""

_logger = logging.getLogger(__name__)
_warned_of: set[str] = set()


class Security(BaseModel):
    """The credentials and the encryption of a client. Files of keys and certificates are PEM.

    `mechanism` applies where `protocol` begins with SASL. PLAIN and SCRAM need `username` and a password. OAUTHBEARER
    gets a token at `token_url` for a client id (`username`) and its secret (the password). GSSAPI has `username` as its
    principal, and its key in `keytab` or an existing ticket. AWS_MSK_IAM finds its keys as AWS's own tools do.
    `key_file` with `certificate_file` (or one file that has both) is for mutual TLS.

    Raises UsageError for an impossible combination.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism = "PLAIN"
    username: str = ""
    password: SecretStr = SecretStr("")
    password_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: SecretStr = SecretStr("")
    key_password_file: str = ""
    token_url: str = ""
    token_scope: str = ""
    kerberos_service: str = "kafka"
    keytab: str = ""

    def __init__(self, **values: Any) -> None:
        secrets = {name: SecretStr(values[name]) for name in SECRETS if isinstance(values.get(name), str)}
        try:
            super().__init__(**{**values, **secrets})
        except ValidationError as error:
            raise UsageError(f"security: {'; '.join(map(_sentence, error.errors()))}.") from None
        self._check()

    @classmethod
    def parse(cls, table: object, directory: Path) -> Security:
        """Return the `Security` of a TOML table; files are relative to `directory`. Raises UsageError."""
        if not isinstance(table, Mapping):
            raise UsageError(f"security is a table of texts, of the keys {', '.join(cls.model_fields)}.")
        return cls(**{key: relative_to(directory, key, value) for key, value in table.items()})

    def _check(self) -> None:
        for secret in SECRETS:
            if getattr(self, secret).get_secret_value() and getattr(self, f"{secret}_file"):
                raise UsageError(f"security: give {secret} or {secret}_file, not both.")
        if self.certificate_file and not self.key_file:
            raise UsageError("security: a certificate_file needs the key_file that belongs to it.")
        if not self.logs_in:
            return
        if self.mechanism in _WITH_PASSWORD and not (
            self.username and (self.password_file or self.password.get_secret_value())
        ):
            raise UsageError(
                f"security: {self.protocol} with {self.mechanism} needs a username, and a password or password_file."
            )
        if self.mechanism == "OAUTHBEARER" and not self.token_url.startswith(("https://", "http://")):
            raise UsageError("security: OAUTHBEARER needs a token_url, https://….")
        if self.mechanism == "AWS_MSK_IAM" and not self.encrypts:
            raise UsageError("security: AWS_MSK_IAM needs the protocol SASL_SSL.")

    @property
    def encrypts(self) -> bool:
        """Whether the connection uses TLS."""
        return self.protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        """Whether the client logs in by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def principal(self) -> str:
        """The principal as Kafka sees it (`User:alice`), as far as the client can know it."""
        if self.logs_in and self.username:
            return f"User:{self.username}"
        return "User:ANONYMOUS" if not self.logs_in and not self.key_file else "this Kafka user"

    def secret(self, name: str) -> str:
        """Return the secret `password` or `key_password`; "" if there is none. Raises UsageError."""
        file = getattr(self, f"{name}_file")
        if file:
            warn_if_readable_by_all(Path(file))
            return text_of(file, f"the {name.replace('_', ' ')} file").strip()
        value: SecretStr = getattr(self, name)
        return value.get_secret_value()

    @property
    def certificate(self) -> str:
        """The file with the client's own certificates; "" if there is none."""
        return self.certificate_file or self.key_file

    def check_files(self) -> None:
        """Check that the named CA, certificate and key files can be read. Raises UsageError."""
        for name, what in (("ca_file", "CA file"), ("certificate_file", "certificate file"), ("key_file", "key file")):
            if file := getattr(self, name):
                text_of(file, f"the {what}")


def text_of(file: str, what: str) -> str:
    """Return the text of a file. Raises UsageError; `what` describes the file there."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{what} {file} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {file} is no text; keys and certificates are PEM files.") from error


def warn_if_readable_by_all(file: Path) -> None:
    """Warn once if other users of the machine can read a file with a secret."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return  # reading it raises the better error
    if mode & stat.S_IROTH and str(file) not in _warned_of:
        _warned_of.add(str(file))
        _logger.warning("%s holds a secret, and every user of this machine can read it: chmod 600 %s", file, file)


def relative_to(directory: Path, key: str, value: object) -> object:
    """Return the value of a key; a file's name becomes absolute, so that it holds in any working directory."""
    is_file = isinstance(value, str) and value and (key.endswith("_file") or key == "keytab")
    return str(directory / str(value)) if is_file else value


def _sentence(error: Mapping[str, Any]) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{name} is unknown (known: {', '.join(Security.model_fields)})"
    if name in _CHOICES:
        return f"{name} is one of {', '.join(_CHOICES[name])}"
    return f"{name} is a text"
