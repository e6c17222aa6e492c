"""Get the OAUTHBEARER token for kafka-python by OAuth 2's client credentials, and keep it until shortly before it
expires.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from kafka.net.sasl.oauth import AbstractTokenProvider

from connectors.kafka.login.security import Security
from ordering.base.canonical import UNREADABLE
from ordering.base.errors import EnvironmentProblem

TIMEOUT_S = 10.0
_SPARE = 0.8
"""The part of a token's lifetime after which a new one is fetched."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python publishes no types
    """Provides kafka-python with a valid token, fetched anew when it is due. Thread-safe."""

    def __init__(self, security: Security) -> None:
        super().__init__()
        self._security = security
        self._lock = threading.Lock()
        self._token = ""
        self._fresh_until = 0.0

    def token(self) -> str:
        """Return a valid token. Raises EnvironmentProblem, UsageError."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._token, lives_s = ask_for_token(self._security)
                self._fresh_until = time.monotonic() + lives_s * _SPARE
            return self._token


def ask_for_token(security: Security) -> tuple[str, float]:
    """Fetch a token; return it with its lifetime in seconds. Raises EnvironmentProblem, UsageError."""
    url, client = security.token_url, f"{security.username}:{security.secret('password')}"
    form = {"grant_type": "client_credentials", **({"scope": security.token_scope} if security.token_scope else {})}
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode("ascii"))  # noqa: S310 - http(s) only
    request.add_header("Authorization", f"Basic {base64.b64encode(client.encode()).decode('ascii')}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            found = json.load(answer)
        return str(found["access_token"]), float(found.get("expires_in", 60))
    except urllib.error.HTTPError as error:
        raise EnvironmentProblem(f"the token server {url} refuses {security.username}: {error.code}.") from None
    except (OSError, *UNREADABLE) as error:
        raise EnvironmentProblem(f"the token server {url} gave no token: {error}.") from None
