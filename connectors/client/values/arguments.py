"""What an application passes, checked before anything is begun: one plain sentence for each mistake."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.storage.location import Location, RemotePath, parse_location
from ordering.base.errors import UsageError

FOR_EVER_S = 10 * 365 * 86_400.0
"""Longer than any process lives, and no longer than Python's locks can wait."""


def text(name: str, value: object) -> str:
    """A text. Raises UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is a text, not {type(value).__name__}.")
    return value


def number(name: str, value: object) -> int:
    """A whole number. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} is a whole number, not {type(value).__name__}.")
    return value


def seconds(name: str, value: object) -> float:
    """A time to wait; None is as long as it takes, and what is below 0 is over already. Raises UsageError."""
    if type(value) is float and 0 <= value <= FOR_EVER_S:  # the usual case; NaN is in no range
        return value
    if value is None:
        return FOR_EVER_S
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UsageError(f"{name} is a number of seconds, or None for as long as it takes; not {value!r}.")
    return float(max(0, min(value, FOR_EVER_S)))


def silence(name: str, value: object) -> float | None:
    """A time without news, after which an iterator ends; None if it never does. Raises UsageError."""
    limit = seconds(name, value)
    if isinstance(value, int | float) and value < 0:
        raise UsageError(f"{name} is {value}: give seconds, or None to wait for ever.")
    return None if value is None else limit


def positive_seconds(name: str, value: object) -> float:
    """A time above 0 that ends. Raises UsageError."""
    if value is None or seconds(name, value) <= 0:
        raise UsageError(f"{name} must be greater than 0.")
    return seconds(name, value)


def path(name: str, value: object) -> Path | None:
    """A path, if there is one. Raises UsageError."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} is a path, not {type(value).__name__}.")
    try:
        found = Path(value)
    except TypeError as error:
        raise UsageError(f"{name} is a path of text, not of bytes.") from error
    if "\0" in str(found):
        raise UsageError(f"{name} has a NUL character, which no file's name can have.")
    return found


def location(name: str, value: object) -> Location | None:
    """A directory or a URL, if there is one. Raises UsageError."""
    if isinstance(value, RemotePath):
        return value
    found = path(name, value)
    return parse_location(value) if isinstance(value, str) else found


def function(name: str, value: object) -> None:
    """Something that can be called, if there is something. Raises UsageError."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} is a function, not {type(value).__name__}.")


def switch(name: str, value: object) -> bool:
    """True or False. Raises UsageError."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is True or False, not {value!r}.")
    return value
