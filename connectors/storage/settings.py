"""The configured access to an object store: each setting, and its source.

Sources in order of precedence: ABCAST_STORAGE_* variables, the table `[storage]` of abcast.toml, the variables of AWS's
own tools, whatever the libraries find by themselves (a role of the machine, for example). The three parts of a login
come from one source: a key with another source's token is refused. (delta-rs takes a token from AWS's variables by
itself, so there must be none beside a key from elsewhere.)

Spark, Arrow and delta-rs each have names of their own for these settings; this module translates to all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, SecretStr

from connectors.kafka.login.configuration import ConfigurationFile, Setting
from ordering.base.errors import UsageError

TABLE = "storage"
PREFIX = "ABCAST_STORAGE_"
SECRETS = ("secret_access_key", "session_token")
_LOGIN = ("access_key_id", *SECRETS)
_OF_AWS = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    **{name: (f"AWS_{name.upper()}",) for name in _LOGIN},
}

_ENDPOINT = re.compile(r"(?i:https?)://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/?")

LOG_STORE = "abcast.ConditionalPutLogStore"
"""The class of conf/scala/ConditionalPutLogStore.scala."""
LOG_STORE_SETTING = "spark.delta.logStore.s3a.impl"


class Storage(BaseModel):
    """A store with the S3 protocol. `endpoint`: its URL, unless it is Amazon's. `check` raises UsageError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: SecretStr = SecretStr("")
    session_token: SecretStr = SecretStr("")

    def check(self) -> None:
        """Raise UsageError for settings that can't work together."""
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            raise UsageError(f"storage: the endpoint {self.endpoint!r} is no URL of a store: write https://HOST:PORT.")
        if bool(self.access_key_id) != bool(self.secret_access_key.get_secret_value()):
            raise UsageError("storage: access_key_id and secret_access_key belong together: give both, or none.")

    @property
    def where(self) -> str:
        """A description of the store."""
        return f"the object store at {self.endpoint}" if self.endpoint else "the object store"

    @property
    def _host(self) -> str:
        return urlsplit(self.endpoint).netloc

    @property
    def _is_plain(self) -> bool:
        return urlsplit(self.endpoint).scheme == "http"

    def for_delta(self) -> dict[str, str]:
        """Return the storage options of delta-rs."""
        return _without_empty(
            {
                "aws_endpoint_url": self.endpoint.rstrip("/"),
                "aws_allow_http": "true" if self._is_plain else "",
                "aws_region": self.region or ("us-east-1" if self.endpoint else ""),
                "aws_access_key_id": self.access_key_id,
                "aws_secret_access_key": self.secret_access_key.get_secret_value(),
                "aws_session_token": self.session_token.get_secret_value(),
                "connect_timeout": "5s",
                "timeout": "15s",
                "retry_timeout": "15s",
                "max_retries": "3",
            }
        )

    def for_arrow(self) -> dict[str, Any]:
        """Return the arguments of Arrow's S3FileSystem."""
        return _without_empty(
            {
                "endpoint_override": self._host,
                "scheme": "http" if self._is_plain else "",
                "region": self.region or ("us-east-1" if self.endpoint else ""),
                "access_key": self.access_key_id,
                "secret_key": self.secret_access_key.get_secret_value(),
                "session_token": self.session_token.get_secret_value(),
                "connect_timeout": 5.0,
                "request_timeout": 5.0,  # of silence
            }
        )

    def for_spark(self) -> dict[str, str]:
        """Return Spark's settings except the login: the store's address, and how files are written."""
        return _without_empty(
            {
                LOG_STORE_SETTING: LOG_STORE,
                "spark.hadoop.fs.s3a.endpoint": self.endpoint,
                "spark.hadoop.fs.s3a.endpoint.region": self.region or ("us-east-1" if self.endpoint else ""),
                "spark.hadoop.fs.s3a.path.style.access": "true" if self.endpoint else "",
                # Files are uploaded from memory: S3A's disk buffers need Hadoop's local file system, which ours
                # replaces. Each open file has one part of this size.
                "spark.hadoop.fs.s3a.fast.upload.buffer": "array",
                "spark.hadoop.fs.s3a.multipart.size": "8M",
                # Fail after some seconds, with a sentence. Hadoop would retry for many minutes.
                "spark.hadoop.fs.s3a.attempts.maximum": "3",
                "spark.hadoop.fs.s3a.retry.limit": "3",
                "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
            }
        )

    def login_for_spark(self) -> dict[str, str]:
        """Return the login among Spark's settings. It must appear on no command line."""
        return _without_empty(
            {
                "spark.hadoop.fs.s3a.access.key": self.access_key_id,
                "spark.hadoop.fs.s3a.secret.key": self.secret_access_key.get_secret_value(),
                "spark.hadoop.fs.s3a.session.token": self.session_token.get_secret_value(),
            }
        )


def configured_storage() -> Storage:
    """Return the effective settings. Raises UsageError."""
    found = storage_settings()
    _check_token(found)
    values = {name: each.value for name, each in found.items()}
    storage = Storage(**{name: SecretStr(value) if name in SECRETS else value for name, value in values.items()})  # type: ignore[arg-type]
    storage.check()
    return storage


def storage_settings() -> dict[str, Setting]:
    """Return each setting by the names of `Storage`. Raises UsageError for an unknown name, or an impossible value."""
    found: dict[str, Setting] = {}
    for source in _sources():
        has_login = any(name in found for name in _LOGIN)
        found |= {
            name: each for name, each in source.items() if name not in found and not (has_login and name in _LOGIN)
        }
    if "endpoint" in found and "@" in found["endpoint"].value:
        raise UsageError(f"a URL can't contain a login: take it out of the endpoint in {found['endpoint'].source}.")
    return found


def _check_token(found: Mapping[str, Setting]) -> None:
    """Raise UsageError if delta-rs would add the token of AWS's variables to a key from another source."""
    key, [of_aws], [token] = found.get("access_key_id"), _OF_AWS["access_key_id"], _OF_AWS["session_token"]
    if key is not None and key.source != of_aws and "session_token" not in found and token in os.environ:
        raise UsageError(
            f"{token} does not belong to the access_key_id of {key.source}, and lets nobody in with it: unset it, or "
            "give session_token there."
        )


def _sources() -> Iterator[dict[str, Setting]]:
    """Yield the settings of our variables, of the configuration file, of AWS's variables. An earlier source wins.

    Raises UsageError for an unknown name, or a value that is no text.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and value}
    for name in sorted(variables):
        _check_name(name.removeprefix(PREFIX).lower(), name)
    yield {name.removeprefix(PREFIX).lower(): Setting(value, name) for name, value in variables.items()}
    file = ConfigurationFile()
    table = file.values.get(TABLE, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{TABLE} in the configuration file {file.path} is a table, [{TABLE}].")
    for name, value in table.items():
        _check_name(name, f"{name} in [{TABLE}] of {file.path}")
        if not isinstance(value, str):
            raise UsageError(f"{name} in [{TABLE}] of {file.path} is a text.")
    yield {name: Setting(value, f"{file.source(TABLE)} [{TABLE}]") for name, value in table.items() if value}
    of_aws = {
        name: Setting(os.environ[variable], variable)
        for name, each in _OF_AWS.items()
        for variable in reversed(each)
        if os.environ.get(variable)
    }
    yield of_aws


def _check_name(name: str, where: str) -> None:
    if name not in Storage.model_fields:
        raise UsageError(f"{where} is unknown: there are {', '.join(Storage.model_fields)}.")


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}
