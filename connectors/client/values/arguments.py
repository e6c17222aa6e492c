"""Check an application's arguments before anything begins: one plain sentence for each mistake."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.storage.location import Location, RemotePath, parse_location
from ordering.base.errors import UsageError

FOR_EVER_S = 10 * 365 * 86_400.0
"""Ten years: longer than any process runs, and within the longest wait of Python's locks."""


def text(name: str, value: object) -> str:
    """Return `value`, a string. Raises UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is a text, not {type(value).__name__}.")
    return value


def number(name: str, value: object) -> int:
    """Return `value`, a whole number. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} is a whole number, not {type(value).__name__}.")
    return value


def seconds(name: str, value: object) -> float:
    """Return a time to wait, at most FOR_EVER_S: that for None, 0 for a negative number. Raises UsageError."""
    if type(value) is float and 0 <= value <= FOR_EVER_S:  # the usual case; NaN is in no range
        return value
    if value is None:
        return FOR_EVER_S
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UsageError(f"{name} is a number of seconds, or None for as long as it takes; not {value!r}.")
    return float(max(0, min(value, FOR_EVER_S)))


def silence(name: str, value: object) -> float | None:
    """Return the seconds without an item after which an iterator ends; None if it never does. Raises UsageError."""
    limit = seconds(name, value)
    if isinstance(value, int | float) and value < 0:
        raise UsageError(f"{name} is {value}: give seconds, or None to wait for ever.")
    return None if value is None else limit


def positive_seconds(name: str, value: object) -> float:
    """Return a time above 0, other than None. Raises UsageError."""
    if value is None or seconds(name, value) <= 0:
        raise UsageError(f"{name} must be greater than 0.")
    return seconds(name, value)


def path(name: str, value: object) -> Path | None:
    """Return the path, or None for None. Raises UsageError."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} is a path, not {type(value).__name__}.")
    try:
        checked = Path(value)
    except TypeError as error:
        raise UsageError(f"{name} is a path of text, not of bytes.") from error
    if "\0" in str(checked):
        raise UsageError(f"{name} has a NUL character, which no file's name can have.")
    return checked


def location(name: str, value: object) -> Location | None:
    """Return the directory or the remote path of a URL, or None for None. Raises UsageError."""
    if isinstance(value, RemotePath):
        return value
    directory = path(name, value)
    return parse_location(value) if isinstance(value, str) else directory


def function(name: str, value: object) -> None:
    """Check that `value` can be called, or is None. Raises UsageError."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} is a function, not {type(value).__name__}.")


def switch(name: str, value: object) -> bool:
    """Return `value`, True or False. Raises UsageError."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is True or False, not {value!r}.")
    return value
