"""Translate a `Security` into the settings of kafka-python, of librdkafka, and of Java's client in Spark."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from connectors.kafka.login.security import Security, text_of
from ordering.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODULES = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(r"-----BEGIN (?P<kind>[A-Z ]*)PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)

_LOGGERS = ("kafka.net.connection", "kafka.protocol.parser", "kafka.admin.client")
"""The loggers of kafka-python that receive requests or settings."""
_WITH_SECRETS = ("%s Send: %r", "Starting KafkaAdminClient with configuration: %s")


class _NoLogins(logging.Filter):
    """Keep passwords out of kafka-python's log: at DEBUG it logs its settings, and the bytes of each request."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        is_login = any(type(each).__name__.startswith("Sasl") for each in arguments)
        return not is_login and record.msg not in _WITH_SECRETS


_NO_LOGINS = _NoLogins()


def for_kafka_python(security: Security) -> dict[str, Any]:
    """Return kafka-python's settings. With a login, also keep its secrets out of the library's log.

    Raises UsageError for a file that can't be read.
    """
    if security.protocol == "PLAINTEXT":
        return {}
    security.check_files()
    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypts:
        settings |= {
            "ssl_cafile": security.ca_file,
            "ssl_certfile": security.certificate,
            "ssl_keyfile": security.key_file,
            "ssl_password": security.secret("key_password"),
        }
    if security.logs_in:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_NO_LOGINS)
        settings["sasl_mechanism"] = security.mechanism
        if security.mechanism == "OAUTHBEARER":
            from connectors.kafka.login.oauth_token import TokenProvider

            settings["sasl_oauth_token_provider"] = TokenProvider(security)
        elif security.mechanism == "GSSAPI":
            settings["sasl_kerberos_service_name"] = security.kerberos_service
        elif security.mechanism != "AWS_MSK_IAM":
            settings |= {
                "sasl_plain_username": security.username,
                "sasl_plain_password": security.secret("password"),
            }
    return {name: value for name, value in settings.items() if value}


def for_librdkafka(security: Security) -> dict[str, Any]:
    """Return confluent-kafka's settings. Raises UsageError for a file that can't be read, and for AWS_MSK_IAM."""
    if security.protocol == "PLAINTEXT":
        return {}
    security.check_files()
    settings: dict[str, Any] = {"security.protocol": security.protocol}
    if security.encrypts:
        settings |= {
            "ssl.ca.location": security.ca_file,
            "ssl.certificate.location": security.certificate,
            "ssl.key.location": security.key_file,
            "ssl.key.password": security.secret("key_password"),
        }
    if security.logs_in:
        settings["sasl.mechanism"] = security.mechanism
        settings |= _login_of_librdkafka(security)
    return {name: value for name, value in settings.items() if value}


def _login_of_librdkafka(security: Security) -> dict[str, Any]:
    if security.mechanism == "AWS_MSK_IAM":
        raise UsageError("security: the transport confluent has no AWS_MSK_IAM; set ABCAST_TRANSPORT=kafka-python.")
    if security.mechanism == "OAUTHBEARER":
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": security.username,
            "sasl.oauthbearer.client.secret": security.secret("password"),
            "sasl.oauthbearer.token.endpoint.url": security.token_url,
            "sasl.oauthbearer.scope": security.token_scope,
        }
    if security.mechanism == "GSSAPI":
        return {
            "sasl.kerberos.service.name": security.kerberos_service,
            "sasl.kerberos.principal": security.username,
            "sasl.kerberos.keytab": security.keytab,
        }
    return {"sasl.username": security.username, "sasl.password": security.secret("password")}


def for_spark(security: Security) -> dict[str, str]:
    """Return the settings of Spark's Kafka source and sink. They contain the keys and certificates: executors need no
    file but a keytab.

    Raises UsageError for a file that can't be read, or has no key or certificate for Java.
    """
    if security.protocol == "PLAINTEXT":
        return {}
    settings: dict[str, str] = {"security.protocol": security.protocol}
    if security.encrypts and security.ca_file:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = _certificates(security.ca_file, "the CA file")
    if security.encrypts and security.key_file:
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.certificate.chain"] = _certificates(security.certificate, "the certificate file")
        settings["ssl.keystore.key"] = _key(security.key_file)
        settings["ssl.key.password"] = security.secret("key_password")
    if security.logs_in:
        settings["sasl.mechanism"] = security.mechanism
        settings["sasl.jaas.config"] = jaas(security.mechanism, _login_of_java(security))
        if security.mechanism == "OAUTHBEARER":
            settings["sasl.oauthbearer.token.endpoint.url"] = security.token_url
            settings["sasl.login.callback.handler.class"] = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
        elif security.mechanism == "AWS_MSK_IAM":
            settings["sasl.client.callback.handler.class"] = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
        elif security.mechanism == "GSSAPI":
            settings["sasl.kerberos.service.name"] = security.kerberos_service
    return {f"kafka.{name}": value for name, value in settings.items() if value}


def _login_of_java(security: Security) -> dict[str, str]:
    if security.mechanism == "AWS_MSK_IAM":
        return {}
    if security.mechanism == "OAUTHBEARER":
        client = {"clientId": security.username, "clientSecret": security.secret("password")}
        return {**client, **({"scope": security.token_scope} if security.token_scope else {})}
    if security.mechanism == "GSSAPI":
        if not security.keytab:
            return {"useTicketCache": "true"}
        return {"useKeyTab": "true", "storeKey": "true", "keyTab": security.keytab, "principal": security.username}
    return {"username": security.username, "password": security.secret("password")}


def jaas(mechanism: str, options: Mapping[str, str]) -> str:
    """Return the setting `sasl.jaas.config` of Java's client, and of brokers, for a login by this mechanism."""
    given = (f"{name}={_quoted(value)}" for name, value in options.items())
    return " ".join([_LOGIN_MODULES[mechanism], "required", *given]) + ";"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _certificates(file: str, what: str) -> str:
    found = _CERTIFICATE.findall(text_of(file, what))
    if not found:
        raise UsageError(f"{what} {file} has no certificate in PEM form.")
    return "\n".join(found)


def _key(file: str) -> str:
    found = _KEY.search(text_of(file, "the key file"))
    if found is None:
        raise UsageError(f"the key file {file} has no private key in PEM form.")
    if found["kind"] not in ("", "ENCRYPTED "):
        raise UsageError(
            f"the key file {file} has a key that Java can't read: `openssl pkcs8 -topk8 -in {file}` writes it anew."
        )
    return found[0]
