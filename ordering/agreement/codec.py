"""A JSON codec for the values of the agreement, driven by the declared types of their fields.

A value is a NamedTuple, a frozen dataclass, a tuple of them, a text, bytes, a whole number from 0 to MAX_NUMBER, a
truth value, or None. Records become lists in the order of their fields. `decode` reads input from elsewhere: anything
that `encode` would not write for the type raises ProtocolViolation, and never another error.

A record may come from another version. Fields behind the known ones are passed over. An added field has a default,
which it takes in records of earlier versions. 0.1.0 passes over no field. So `LATER` fields of a dataclass, and the
last `added` fields of an encoded record, are left out at their defaults. A promise to other sites must not be passed
over: an entry with one is readable from its version on only (`ordering.agreement.log`).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ordering.agreement.hold_back import Places
from ordering.base.errors import ProtocolViolation
from ordering.base.records import MAX_NUMBER

MAX_PLACES = 1_024
"""Largest number of places in a `Places`, far above the number of processes in any view."""

_TEXT = "~"
"""The prefix of bytes that are written as text."""

LATER = {"later": True}
"""The metadata of a field that a later version added. Earlier versions can read the record while it has its default."""

T = TypeVar("T")
_Reader = Callable[[object], object]


def encode(value: object, added: int = 0, *, as_text: bool = False) -> bytes:
    """Return JSON; equal values give equal bytes. `added`: the number of last fields that readers may not know.

    `as_text`: write bytes that are text as such, which 0.1.0 does not read.
    """
    plain = _without_defaults(value, added) if added else value
    default = _plain_text if as_text else _plain
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True, default=default).encode("ascii")


def decode(kind: type[T], raw: bytes) -> T:
    """Return the inverse of `encode` for values of type `kind`. Raises ProtocolViolation."""
    try:
        return cast("T", _reader(cast("Any", kind))(json.loads(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error


def _without_defaults(value: object, added: int) -> list[object]:
    """Return the fields of a record, less the trailing ones among the last `added` that have their defaults."""
    values, defaults = _values(value), _defaults(cast("Any", type(value)))
    while added and values[-1] == defaults[len(values) - 1]:
        values, added = values[:-1], added - 1
    return values


def _values(value: object) -> list[object]:
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return list(cast("Iterable[object]", value))


@functools.cache
def _defaults(kind: Any) -> dict[int, object]:
    """Return the defaults of a record's fields by field index, for the fields that have one."""
    if dataclasses.is_dataclass(kind):
        fields = enumerate(dataclasses.fields(kind))
        return {at: field.default for at, field in fields if field.default is not dataclasses.MISSING}
    names = getattr(kind, "_fields", ())
    return {names.index(name): value for name, value in getattr(kind, "_field_defaults", {}).items()}


def _plain_text(value: object) -> object:
    """Return a value that JSON can write, as `_plain` does, with bytes as text where they are."""
    is_text = isinstance(value, bytes) and value.isascii() and value.decode("ascii").isprintable()
    return _TEXT + value.decode("ascii") if is_text and isinstance(value, bytes) else _plain(value)


def _plain(value: object) -> object:
    """Return a value that JSON can write. JSON itself writes tuples, named ones too, as lists."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        later = sum(map(bool, (field.metadata for field in dataclasses.fields(value))))
        return _without_defaults(value, later)
    raise TypeError(f"{value!r:.40} can't be stored")


@functools.cache
def _fields(kind: Any) -> tuple[Any, ...]:
    """Return the types of a record's fields, in their order."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return tuple(hints[field.name] for field in dataclasses.fields(kind))
    return tuple(hints[name] for name in kind._fields)


@functools.cache
def _reader(kind: Any) -> _Reader:
    """Return the function that makes a value of this type from JSON. It is built once, as entries have many values."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _optional(_reader(next(arg for arg in get_args(kind) if arg is not type(None))))
    if origin is tuple:
        kinds = get_args(kind)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            return _many(_reader(kinds[0]))
        return _record(tuple, tuple(map(_reader, kinds)), {})
    if kind is Places:
        return _places
    if kind is int:
        return _whole
    if kind is bytes:
        return _bytes
    if kind in (bool, str):
        return _exactly(kind)
    return _record(lambda values: kind(*values), tuple(map(_reader, _fields(kind))), _defaults(kind))


def _optional(read: _Reader) -> _Reader:
    return lambda plain: None if plain is None else read(plain)


def _many(read: _Reader) -> _Reader:
    def many(plain: object) -> object:
        return tuple(map(read, _list(plain)))

    return many


def _record(
    make: Callable[[Iterable[object]], object], readers: tuple[_Reader, ...], defaults: Mapping[int, object]
) -> _Reader:
    def record(plain: object) -> object:
        items = _list(plain)
        if any(place not in defaults for place in range(len(items), len(readers))):
            raise ValueError(f"{len(readers)} fields are wanted, not {len(items)}")
        return make(read(item) for read, item in zip(readers, items, strict=False))

    return record


def _exactly(kind: type) -> _Reader:
    def exactly(plain: object) -> object:
        if type(plain) is not kind:
            raise ValueError(f"{plain!r:.40} is not a {kind.__name__} here")
        return plain

    return exactly


def _whole(plain: object) -> object:
    if type(plain) is not int or not 0 <= plain <= MAX_NUMBER:
        raise ValueError(f"{plain!r:.40} is not an int here")
    return plain


def _places(plain: object) -> object:
    if type(plain) is not int or not 0 <= plain < 1 << MAX_PLACES:
        raise ValueError(f"{plain!r:.40} are not places here")
    return plain


def _list(plain: object) -> list[object]:
    if not isinstance(plain, list):
        raise ValueError(f"{plain!r:.40} is not a list")
    return plain


def _bytes(plain: object) -> bytes:
    if not isinstance(plain, str):
        raise ValueError(f"{plain!r:.40} is not text")
    try:
        if plain.startswith(_TEXT):
            return plain[len(_TEXT) :].encode("ascii")
        return base64.b64decode(plain, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
