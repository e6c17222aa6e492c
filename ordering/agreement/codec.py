"""Values of the ISIS modules as JSON, and back: read by the types that their fields are declared with.

A value is a NamedTuple, a frozen dataclass, a tuple of them, a text, bytes, a whole number, a truth value, or None;
records become lists in the order of their fields. `decode` takes nothing that `encode` has not written for that type:
it reads what came from elsewhere, so what does not fit raises ProtocolViolation, never anything else.

A record may be of another version. Fields that a later one has written behind those that are known are passed over. A
field that was added has a default, which it has where an earlier version has written the record. 0.1.0 passes over
none; so those that are `LATER` in a dataclass, and the last `added` of what is encoded, are left out at their defaults.
What a version has promised to others must not be passed over: then entries are readable from that one on only
(`ordering.agreement.log`).
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
"""More than processes that a view can have: each answers for each run."""

_TEXT = "~"
"""Before bytes that are written as text."""

LATER = {"later": True}
"""The metadata of a field that was not always there: earlier versions go on with each other as long as none uses it."""

T = TypeVar("T")
_Reader = Callable[[object], object]


def encode(value: object, added: int = 0, *, as_text: bool = False) -> bytes:
    """A value as JSON, equal values as equal bytes. `added`: so many of its last fields readers may not know.

    `as_text`: bytes that are text stand there as such, which 0.1.0 does not read.
    """
    plain = _without_defaults(value, added) if added else value
    default = _plain_text if as_text else _plain
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True, default=default).encode("ascii")


def decode(kind: type[T], raw: bytes) -> T:
    """Inverse of `encode` for values of that type. Raises ProtocolViolation."""
    try:
        return cast("T", _reader(cast("Any", kind))(json.loads(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error


def _without_defaults(value: object, added: int) -> list[object]:
    """Return the fields of a record without those of the last `added` that have their defaults, as all behind them."""
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
    """Return the defaults of a record's fields by their places, of those that have one."""
    if dataclasses.is_dataclass(kind):
        fields = enumerate(dataclasses.fields(kind))
        return {at: field.default for at, field in fields if field.default is not dataclasses.MISSING}
    names = getattr(kind, "_fields", ())
    return {names.index(name): value for name, value in getattr(kind, "_field_defaults", {}).items()}


def _plain_text(value: object) -> object:
    """The same, where bytes may be text."""
    is_text = isinstance(value, bytes) and value.isascii() and value.decode("ascii").isprintable()
    return _TEXT + value.decode("ascii") if is_text and isinstance(value, bytes) else _plain(value)


def _plain(value: object) -> object:
    """What JSON does not know by itself: it writes tuples, named ones too, as lists."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        later = sum(map(bool, (field.metadata for field in dataclasses.fields(value))))
        return _without_defaults(value, later)
    raise TypeError(f"{value!r:.40} can't be stored")


@functools.cache
def _fields(kind: Any) -> tuple[Any, ...]:
    """The types of a record's fields, in their order."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return tuple(hints[field.name] for field in dataclasses.fields(kind))
    return tuple(hints[name] for name in kind._fields)


@functools.cache
def _reader(kind: Any) -> _Reader:
    """What makes a value of that type out of what JSON has for it. It is made once: an entry has hundreds of values."""
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
