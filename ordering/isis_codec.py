"""Values of the ISIS modules as JSON, and back: read by the types that their fields are declared with.

A value is a NamedTuple, a frozen dataclass, a tuple of them, a text, bytes, a whole number, a truth value, or None;
records become lists in the order of their fields. `decode` takes nothing that `encode` has not written for that type:
it reads what came from elsewhere, so what does not fit raises ProtocolViolation, never anything else.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import json
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ordering.errors import ProtocolViolation
from ordering.records import MAX_NUMBER

T = TypeVar("T")


def encode(value: object) -> bytes:
    """A value as JSON, equal values as equal bytes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=_plain).encode("ascii")


def decode(kind: type[T], raw: bytes) -> T:
    """Inverse of `encode` for values of that type. Raises ProtocolViolation."""
    try:
        return cast("T", _read(kind, json.loads(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error


def _plain(value: object) -> object:
    """What JSON does not know by itself: it writes tuples, named ones too, as lists."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    raise TypeError(f"{value!r:.40} can't be stored")


@functools.cache
def _fields(kind: Any) -> tuple[Any, ...]:
    """The types of a record's fields, in their order."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return tuple(hints[field.name] for field in dataclasses.fields(kind))
    return tuple(hints[name] for name in kind._fields)


def _read(kind: Any, plain: object) -> object:
    if get_origin(kind) in (Union, UnionType):
        return None if plain is None else _read(next(arg for arg in get_args(kind) if arg is not type(None)), plain)
    if kind is bytes:
        return _bytes(plain)
    if kind in (int, bool, str):
        if type(plain) is not kind or (kind is int and not 0 <= cast("int", plain) <= MAX_NUMBER):
            raise ValueError(f"{plain!r:.40} is not a {kind.__name__} here")
        return plain
    if not isinstance(plain, list):
        raise ValueError(f"{plain!r:.40} is not a list")
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), plain)
    types = _fields(kind)
    if len(types) != len(plain):
        raise ValueError(f"a {kind.__name__} has {len(types)} fields, not {len(plain)}")
    return kind(*(_read(item_kind, item) for item_kind, item in zip(types, plain, strict=True)))


def _tuple(kinds: tuple[Any, ...], plain: list[object]) -> tuple[object, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item) for item in plain)
    return tuple(_read(kind, item) for kind, item in zip(kinds, plain, strict=True))


def _bytes(plain: object) -> bytes:
    if not isinstance(plain, str):
        raise ValueError(f"{plain!r:.40} is not text")
    try:
        return base64.b64decode(plain, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
