"""The settings of a group, and their changes by `settings` records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.errors import ProtocolViolation, UsageError
from ordering.base.records import MAX_NUMBER


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a group, which its operator decides.

    closed: only members may send; a message of another sender is a dead letter.
    flush: every view is installed inside a flush, so that a message is delivered in the view in which it was sent.
    suspect_after_ms: longest silence of a member, by the log's clock. Its client sends a heartbeat each second.
    flush_timeout_ms: longest flush, by the log's clock, counted from the first tick that knows of START_FLUSH.

    `unknown` has the settings of later versions, with their JSON values. They are kept, and change nothing.
    """

    closed: bool = False
    flush: bool = False
    suspect_after_ms: int = 10_000
    flush_timeout_ms: int = 30_000
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def known(self) -> dict[str, Any]:
        """Return the settings that this version knows, as JSON values."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def to_json(self) -> bytes:
        """Return the payload of a `settings` record."""
        return canonical_json(self.known())

    def decided(self, raw: bytes) -> Settings:
        """Return the settings `updated` by a record of DATA, which may have later settings, too.

        Raises ProtocolViolation if no sequencer writes that record.
        """
        try:
            changes = _changes(raw)
            unknown = {name: value for name, value in changes.items() if name not in _SETTINGS}
            mine = {name: value for name, value in changes.items() if name not in unknown}
            after = self.updated(canonical_json(mine)) if mine else self
        except UsageError as error:
            raise ProtocolViolation(f"DATA has settings that can't be read: {error}") from error
        return replace(after, unknown={**self.unknown, **unknown}) if unknown else after

    def updated(self, raw: bytes) -> Settings:
        """Return the settings changed by the JSON object `raw`. Raises UsageError for unknown names and bad values."""
        changes = _changes(raw)
        if not set(_SETTINGS).issuperset(changes):
            raise UsageError(_NOT_SETTINGS)
        for name, value in changes.items():
            if name in ("closed", "flush"):
                if not isinstance(value, bool):
                    raise UsageError(f"{name} is true or false.")
            elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NUMBER:
                raise UsageError(f"{name} is a whole number of milliseconds, from 1.")
        return replace(self, **changes)


DEFAULT_SETTINGS = Settings()

_SETTINGS = tuple(item.name for item in fields(Settings) if item.name != "unknown")
_NOT_SETTINGS = f"settings are a JSON object with some of {', '.join(sorted(_SETTINGS))}."


def _changes(raw: bytes) -> dict[str, Any]:
    """Parse a `settings` record. Raises UsageError."""
    try:
        changes = json.loads(raw)
    except UNREADABLE as error:
        raise UsageError("settings are not JSON.") from error
    if not isinstance(changes, dict) or not changes:
        raise UsageError(_NOT_SETTINGS)
    return changes
