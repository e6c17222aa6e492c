"""Read a client's properties file, as Kafka's own tools take it (`--command-config`), into the fields of `Security`.

The names of Kafka and of librdkafka are understood. Settings that don't concern the connection (`acks`, `group.id`, …)
are not used; the log names them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from connectors.kafka.login.security import text_of
from ordering.base.errors import UsageError

_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
    "sasl.oauthbearer.token.endpoint.url": "token_url",
    "sasl.oauthbearer.client.id": "username",
    "sasl.oauthbearer.client.secret": "password",
    "sasl.oauthbearer.scope": "token_scope",
    "sasl.kerberos.service.name": "kerberos_service",
    "sasl.kerberos.principal": "username",
    "sasl.kerberos.keytab": "keytab",
}
_OF_LOGINS = {
    "username": "username",
    "password": "password",
    "clientId": "username",
    "clientSecret": "password",
    "scope": "token_scope",
    "principal": "username",
    "keyTab": "keytab",
    "serviceName": "kerberos_service",
}
"""The options of a login module, in `sasl.jaas.config`."""

_STORES = {"ssl.truststore.location": "ca_file", "ssl.keystore.location": "key_file"}
_FOLLOWS = ("ssl.truststore.type", "ssl.keystore.type", "ssl.truststore.password", "ssl.keystore.password")
"""Settings that say nothing more about a store in PEM form."""
_FILES = ("ca_file", "certificate_file", "key_file", "keytab")
_LINE = re.compile(r"\s*(?P<name>(?:[^\\:=\s]|\\.)+)\s*[:=]?\s*(?P<value>.*)", re.DOTALL)
_OPTION = re.compile(r'(?P<name>\w+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;"]+))')
_ESCAPED = re.compile(r"((?:\\u[0-9a-fA-F]{4})+)|\\(.)")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

_logger = logging.getLogger(__name__)


def read_properties(file: Path) -> dict[str, str]:
    """Return the file's settings by the names of `Security`, and `bootstrap_servers`.

    Raises UsageError if the file can't be read, has a Java key store, or turns the check of brokers' names off.
    """
    found = dict(parse_properties(text_of(str(file), "the Kafka configuration")))
    settings: dict[str, str] = {}
    unused = []
    for name, value in found.items():
        if name in _NAMES:
            settings[_NAMES[name]] = value
        elif name in _STORES:
            settings[_STORES[name]] = _pem(file, found, name)
        elif name == "sasl.jaas.config":
            settings |= _login(value)
        elif name == "ssl.endpoint.identification.algorithm":
            if value.strip().lower() != "https":
                raise UsageError(f"{file}: a broker's certificate must have its name, always: leave out {name}.")
        elif name not in _FOLLOWS:
            unused.append(name)
    if unused:
        _logger.info("%s: not used by abcast: %s", file, ", ".join(unused))
    return {
        name: str(file.parent / value) if name in _FILES and _is_beside(file, value) else value
        for name, value in settings.items()
    }


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values, as Java reads them."""
    whole = ""
    for line in [*re.split("\r\n|\n|\r", text), ""]:  # the last line may end with a backslash
        part = line.lstrip()
        if not whole and (not part or part[0] in "#!"):
            continue
        whole += part
        if re.search(r"(?<!\\)(?:\\\\)*\\$", whole):
            whole = whole[:-1]
            continue
        if (found := _LINE.fullmatch(whole)) is not None:
            yield _unescaped(found["name"]), _unescaped(found["value"])
        whole = ""


def _unescaped(text: str) -> str:
    """Replace escapes, from left to right: an escaped backslash escapes nothing behind it."""

    def character(found: re.Match[str]) -> str:
        units, other = found.groups()
        if other is not None:
            return _ESCAPES.get(other, other)
        return bytes.fromhex(units.replace("\\u", "")).decode("utf-16-be", "replace")

    return _ESCAPED.sub(character, text)


def _login(jaas: str) -> dict[str, str]:
    options = {
        found["name"]: found["bare"] if found["quoted"] is None else re.sub(r"\\(.)", r"\1", found["quoted"])
        for found in _OPTION.finditer(jaas)
    }
    return {_OF_LOGINS[name]: value for name, value in options.items() if name in _OF_LOGINS}


def _pem(file: Path, found: dict[str, str], name: str) -> str:
    kind = found.get(name.replace(".location", ".type"), "")
    if kind.upper() != "PEM" and not found[name].endswith((".pem", ".crt", ".key")):
        raise UsageError(
            f"{file}: {name} is a Java key store, and only Java reads those: export it as PEM "
            f"(`keytool -exportcert -rfc`, `openssl pkcs12 -in`), and write {name.replace('.location', '.type')}=PEM."
        )
    return found[name]


def _is_beside(file: Path, value: str) -> bool:
    """Whether a relative name means a file beside `file`. Kafka's tools resolve it from their working directory."""
    return bool(value) and not Path(value).exists() and (file.parent / value).exists()
