"""Turn a broker's refusal into one sentence for the user."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kafka.errors import (
    AuthorizationError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailedError,
)

from connectors.kafka.login.security import Security
from ordering.base.errors import KafkaRefused

HOW = "`abcast acl` gives each role the rights that it needs"


def may_not(security: Security, operation: str, resource: str) -> str:
    """Return the sentence that says which right the user lacks, and how to get it."""
    return f"{security.principal} may not {operation} {resource}: {HOW}."


def refused(
    servers: str, security: Security, error: KafkaError, operation: str = "", resource: str = ""
) -> KafkaRefused:
    """Return the error for a refusal that retrying does not mend. `operation`, `resource`: the rejected request."""
    if isinstance(error, AuthorizationError):
        what = resource or ", ".join(sorted(_named(error.args))) or _kind(error)
        return KafkaRefused(may_not(security, operation or "use", what))
    if isinstance(error, SaslAuthenticationFailedError):
        who = security.username or "this user"
        return KafkaRefused(f"Kafka at {servers} does not let in {who}: the username or the password is wrong.")
    details = ", ".join(map(str, error.args)) or getattr(error, "description", "")
    return KafkaRefused(f"Kafka at {servers} refuses: {type(error).__name__}{': ' if details else ''}{details}.")


def _named(arguments: Iterable[object]) -> Iterable[str]:
    for argument in arguments:
        if isinstance(argument, str) and re.fullmatch(r"[\w.-]+", argument):
            yield argument
        elif isinstance(argument, set | frozenset | list | tuple):
            yield from map(str, argument)


def _kind(error: AuthorizationError) -> str:
    if isinstance(error, ClusterAuthorizationFailedError):
        return "the cluster"
    return "a consumer group" if isinstance(error, GroupAuthorizationFailedError) else "a topic"
