"""A JSON codec for the values of the agreement, driven by the declared types of their fields.

A value is a NamedTuple, a dataclass, a collection of them, a text, bytes, a whole number from 0 to MAX_NUMBER, a
truth value, or None. Records become lists in the order of their fields. A set is sorted. A map becomes its pairs in
the order of its keys, or its values alone if the first field of a value is its key. Sets, maps and queues are fields of
dataclasses, and empty by default. `decode` reads input from elsewhere: anything that `encode` would not write for the
type raises ProtocolViolation, and never another error.

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
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ordering.agreement.hold_back import HeldRun, HoldBackQueue, Places
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
    return (_WITH_TEXT if as_text else _WITHOUT_TEXT).encode(plain).encode("ascii")


def decode(kind: type[T], raw: bytes, check: Callable[[object], None] = lambda _: None) -> T:
    """Return the inverse of `encode` for values of type `kind`. Raises ProtocolViolation.

    `check` gets the JSON value first, and may raise an error of its own.
    """
    try:
        plain = json.loads(raw)
        check(plain)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error
    return value_of(kind, plain)


def plain_of(value: object) -> object:
    """Return the JSON value of a message, with bytes that are text as such."""
    if isinstance(value, tuple):
        return list(map(plain_of, value))
    return _plain_text(value) if isinstance(value, bytes) else value


def value_of(kind: type[T], plain: object) -> T:
    """Return the inverse of `plain_of` for values of type `kind`. Raises ProtocolViolation."""
    try:
        return cast("T", _reader(cast("Any", kind))(plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error


def _without_defaults(value: object, added: int) -> list[object]:
    """Return the fields of a record, less the trailing ones among the last `added` that have their defaults."""
    values, defaults = _values(value), _defaults(cast("Any", type(value)))
    while added and values[-1] == defaults[len(values) - 1]:
        values, added = values[:-1], added - 1
    return values


def _values(value: object) -> list[object]:
    if isinstance(value, tuple):
        return list(value)
    fields_of, writers = _written(cast("Any", type(value)))
    values = list(fields_of(value))
    for place, write in writers:
        values[place] = write(values[place])
    return values


@functools.cache
def _written(kind: Any) -> tuple[attrgetter[tuple[object, ...]], list[tuple[int, Callable[[Any], object]]]]:
    """Return the getter of a dataclass's fields, two or more, and the functions that make lists of some, by place."""
    writers = enumerate(map(_writer, _fields(kind)))
    names = [field.name for field in dataclasses.fields(kind)]
    return attrgetter(*names), [(place, write) for place, write in writers if write is not None]


def _writer(hint: Any) -> Callable[[Any], object] | None:
    if get_origin(hint) is dict:
        return _rows if _is_table(*get_args(hint)) else _pairs
    return _WRITERS.get(get_origin(hint) or hint)


def _pairs(value: Mapping[Any, object]) -> list[tuple[object, object]]:
    return sorted(value.items(), key=itemgetter(0))


def _rows(value: Mapping[Any, object]) -> list[object]:
    return [value[key] for key in sorted(value)]


def _is_table(key: Any, value: Any) -> bool:
    """Whether a map's values are records that begin with their keys."""
    is_record = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
    return is_record and _fields(value)[0] == key


_WRITERS: Mapping[Any, Callable[[Any], object]] = {deque: list, HoldBackQueue: list, set: sorted}


@functools.cache
def _defaults(kind: Any) -> dict[int, object]:
    """Return the defaults of a record's fields as written, by field index, for the fields that have one."""
    if dataclasses.is_dataclass(kind):
        missing, found = dataclasses.MISSING, {}
        for at, field in enumerate(dataclasses.fields(kind)):
            if field.default is not missing or field.default_factory is not missing:
                found[at] = [] if field.default is missing else field.default
        return found
    names = getattr(kind, "_fields", ())
    return {names.index(name): value for name, value in getattr(kind, "_field_defaults", {}).items()}


def _plain_text(value: object) -> object:
    """Return a value that JSON can write, as `_plain` does, with bytes as text where they are."""
    if type(value) is bytes and value.isascii() and (text := value.decode("ascii")).isprintable():
        return _TEXT + text
    return _plain(value)


def _plain(value: object) -> object:
    """Return a value that JSON can write. JSON itself writes tuples, named ones too, as lists."""
    if type(value) is bytes:
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    later = _later(cast("Any", type(value)))
    return _without_defaults(value, later) if later else _values(value)


_WITH_TEXT, _WITHOUT_TEXT = (
    json.JSONEncoder(separators=(",", ":"), default=default, check_circular=False) for default in (_plain_text, _plain)
)


@functools.cache
def _later(kind: Any) -> int:
    """Return the number of a dataclass's `LATER` fields. Raises TypeError for another type."""
    return sum(bool(field.metadata) for field in dataclasses.fields(kind))


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
    if origin in (list, set, deque):
        return _many(_reader(get_args(kind)[0]), origin)
    if origin is dict:
        return _map(*get_args(kind))
    if kind is HoldBackQueue:
        return _many(_reader(HeldRun), HoldBackQueue)
    if kind is Places:
        return _places
    if kind is int:
        return _whole
    if kind is bytes:
        return _bytes
    if kind in (bool, str):
        return _exactly(kind)
    if kind is object:  # any JSON value
        return lambda plain: plain
    return _record(lambda values: kind(*values), tuple(map(_reader, _fields(kind))), _defaults(kind))


def _optional(read: _Reader) -> _Reader:
    return lambda plain: None if plain is None else read(plain)


def _many(read: _Reader, make: Callable[[Iterable[Any]], object] = tuple) -> _Reader:
    return lambda plain: make(map(read, _list(plain)))


def _map(key: Any, value: Any) -> _Reader:
    if not _is_table(key, value):
        return _many(_reader(tuple[key, value]), dict)
    first = dataclasses.fields(value)[0].name if dataclasses.is_dataclass(value) else value._fields[0]
    key_of, read = attrgetter(first), _many(_reader(value))
    return lambda plain: {key_of(row): row for row in cast("tuple[object, ...]", read(plain))}


def _record(
    make: Callable[[Iterable[object]], object], readers: tuple[_Reader, ...], defaults: Mapping[int, object]
) -> _Reader:
    count = len(readers)

    def record(plain: object) -> object:
        items = _list(plain)
        if len(items) < count and any(place not in defaults for place in range(len(items), count)):
            raise ValueError(f"{count} fields are wanted, not {len(items)}")
        return make([read(item) for read, item in zip(readers, items, strict=False)])

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
