"""How to log in to a Kafka and how to encrypt: said once, for every library that does it (`dialects` has their words).

A secret is a text, or stands in a file of its own; it is read when a client is made, and shown nowhere.
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
"""Each may also be given as the name of a file: `password_file`, `key_password_file`."""

_logger = logging.getLogger(__name__)
_warned_of: set[str] = set()


class Security(BaseModel):
    """What a client needs to be let in. Files of keys and certificates are PEM.

    `mechanism` counts where `protocol` begins with SASL. PLAIN and SCRAM need `username` and a password. OAUTHBEARER
    gets a token at `token_url` for a client id (`username`) and its secret (the password). GSSAPI has `username` as its
    principal, and its key in `keytab`, or a ticket that is there. AWS_MSK_IAM finds its keys as AWS's own tools do.
    `key_file` with `certificate_file` (or one file that has both) is for mutual TLS.

    Raises UsageError for what can't be.
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
        """From a table of a TOML file; files are relative to `directory`. Raises UsageError."""
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
        """Whether it is TLS."""
        return self.protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        """Whether it is SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def principal(self) -> str:
        """Who Kafka takes it for, as far as that is known here; what users call `User:alice`."""
        if self.logs_in and self.username:
            return f"User:{self.username}"
        return "User:ANONYMOUS" if not self.logs_in and not self.key_file else "this Kafka user"

    def secret(self, name: str) -> str:
        """The secret itself: `password` or `key_password`; "" if there is none. Raises UsageError."""
        file = getattr(self, f"{name}_file")
        if file:
            warn_if_readable_by_all(Path(file))
            return text_of(file, f"the {name.replace('_', ' ')} file").strip()
        given: SecretStr = getattr(self, name)
        return given.get_secret_value()

    @property
    def certificate(self) -> str:
        """The file with the client's own certificates, "" if there is none."""
        return self.certificate_file or self.key_file

    def check_files(self) -> None:
        """See that the files that it names can be read. Raises UsageError."""
        for name, what in (("ca_file", "CA file"), ("certificate_file", "certificate file"), ("key_file", "key file")):
            if file := getattr(self, name):
                text_of(file, f"the {what}")


def text_of(file: str, what: str) -> str:
    """What stands in a file. Raises UsageError, which says what the file is."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{what} {file} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {file} is no text; keys and certificates are PEM files.") from error


def warn_if_readable_by_all(file: Path) -> None:
    """Warn of a file with a secret that other users of the machine can read, once."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return  # whoever reads it says why it can't be read
    if mode & stat.S_IROTH and str(file) not in _warned_of:
        _warned_of.add(str(file))
        _logger.warning("%s holds a secret, and every user of this machine can read it: chmod 600 %s", file, file)


def relative_to(directory: Path, key: str, value: object) -> object:
    """The value of a key: where it is a file's name, one that holds wherever this process works."""
    is_file = isinstance(value, str) and value and (key.endswith("_file") or key == "keytab")
    return str(directory / str(value)) if is_file else value


def _sentence(error: Mapping[str, Any]) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{name} is unknown (known: {', '.join(Security.model_fields)})"
    if name in _CHOICES:
        return f"{name} is one of {', '.join(_CHOICES[name])}"
    return f"{name} is a text"
