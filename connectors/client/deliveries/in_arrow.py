"""Deliveries in Arrow: each record batch has the next messages as rows.

Invariant. The rows of a run's batches, one after the other, are the messages that `deliveries` gives, each once and in
the same order; a column has a field of them. A batch is taken as a list of `batches` is: all of it, or nothing. So a
run that ends in the middle of a batch (an exception, Ctrl-C, `close`, kill -9) leaves it to the next run. Views and
other events make no row.

The payloads of a pack are one behind the other in its value, after their lengths. They are copied together, and the
lengths make the offsets of the array: no object is made for each message.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from connectors.client.deliveries.deliveries import Deliveries, fields_of
from connectors.client.values.delivery import Delivery
from connectors.client.values.stream import Stream
from connectors.kafka.codec.inputs import LATEST_MS
from connectors.kafka.log.effective import Messages, PackedMessages
from ordering.base.errors import UsageError
from ordering.base.records import Headers

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch, Schema


class ArrowStream(Stream[Any]):
    """An iterator over the record batches of a run, for one thread. `Stream` says what *taken* means, for a batch."""

    def __init__(
        self, run: Deliveries, around: Callable[[Iterator[Any]], Iterator[Any]] | None, size: tuple[int, float]
    ) -> None:
        """Prepare it. `size` is from `checked`."""
        self._size = size
        run.gather_in(record_batch)
        super().__init__(run, around=around)

    def __next__(self) -> RecordBatch:
        """Take the batch in hand; wait for the next one and return it. Raises as `Stream.__next__`."""
        return self._next_list(*self._size)

    def batches(self, *_: Any, **__: Any) -> Iterator[list[Any]]:
        """Raise UsageError: each item is a batch."""
        raise UsageError("an item of deliveries_arrow is a batch by itself: give `most` and `wait_s` to that.")


def checked(most: int, wait_s: float | None) -> tuple[int, float]:
    """Return the size of a batch, as `Stream.of_list`. Raises UsageError, also if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise UsageError("deliveries_arrow needs pyarrow: pip install 'abcast[arrow]'.")
    return Stream.of_list(most, wait_s)


def record_batch(parts: Sequence[Messages | Sequence[Delivery]]) -> RecordBatch:
    """Return the rows of the messages in `parts`, none of them empty. Their payloads have less than 2 GiB together."""
    import pyarrow as pa

    fields: list[list[Any]] = [[] for _ in Delivery._fields]  # of each record; a pack has its first message's
    sizes: list[int] = []
    content: list[bytes | memoryview] = []
    of_parts: list[NDArray[Any]] = []  # the lengths of the payloads
    for part in parts:
        if isinstance(part, PackedMessages):
            packs = part.packs
            sizes += [pack.size for pack in packs]
            content += [pack.content for pack in packs]
            of_parts.append(np.frombuffer(b"".join([pack.lengths for pack in packs]), ">u4"))
            found: Iterable[Iterable[Any]] = fields_of(Messages.of(pack.first for pack in packs))
        else:
            found = fields_of(part) if isinstance(part, Messages) else zip(*part, strict=True)
        for field, values in zip(fields, found, strict=True):
            field += values
        if not isinstance(part, PackedMessages):
            payloads = fields[4][-len(part) :]
            sizes += itertools.repeat(1, len(part))
            content += payloads
            of_parts.append(np.array([*map(len, payloads)]))
    counts, lengths = np.array(sizes), np.concatenate(of_parts)
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(counts) - counts, counts)

    def numbers(of_each: Sequence[int]) -> NDArray[np.int64]:
        return np.repeat(np.array(of_each, np.int64), counts)

    seqno, sender, incarnation, local_seqno, _, headers, *others, order, _ = fields
    view_id, epoch, forwarded_at_ms, sequenced_at_ms = others
    record = pa.array(np.repeat(np.arange(len(sizes)), counts))  # the number of each row's record
    columns = [
        numbers(seqno) + within,
        _texts(sender, record),
        numbers(incarnation),
        numbers(local_seqno) + within,
        _binary(content, lengths),
        _headers(headers, record),
        numbers(view_id),
        numbers(epoch),
        _times(forwarded_at_ms, counts),
        _times(sequenced_at_ms, counts),
        _texts(order, record),
    ]
    return pa.record_batch(columns, schema=schema())


@functools.cache
def schema() -> Schema:
    """Return the columns: the fields of `Delivery`, in its order, under the names and in the types of the ledger."""
    import pyarrow as pa

    header, time = pa.struct([("key", pa.string()), ("value", pa.binary())]), pa.timestamp("us", "UTC")
    return pa.schema(
        [
            ("seqno", pa.int64()),
            ("sender", pa.string()),
            ("incarnation", pa.int64()),
            ("local_seqno", pa.int64()),
            ("payload", pa.binary()),
            ("headers", pa.list_(header)),
            ("view_id", pa.int64()),
            ("epoch", pa.int64()),
            ("forwarded_at", time),
            ("sequenced_at", time),
            ("order", pa.string()),
        ]
    )


def _texts(of_each: Sequence[str], record: Array) -> Array:
    """Return the text of each message, given the text of each record."""
    import pyarrow as pa

    if len(set(of_each)) == 1:  # takes a fifth of the time
        return pa.repeat(pa.scalar(of_each[0]), len(record))
    return pa.array(of_each, pa.string()).take(record)


def _times(of_each: Sequence[int], counts: NDArray[Any]) -> Array:
    """Return the time of each message, given that of each record in ms; null for 0, or more than a timestamp takes."""
    import pyarrow as pa

    of_ms = np.array(of_each, np.int64)
    is_none = (of_ms == 0) | (of_ms > LATEST_MS)
    mask = np.repeat(is_none, counts) if is_none.any() else None
    return pa.array(np.repeat(of_ms * 1000, counts), pa.timestamp("us", "UTC"), mask=mask)


def _binary(content: Sequence[bytes | memoryview], lengths: NDArray[Any]) -> Array:
    """Return the values of these lengths in `content`, one directly after the other: with one copy of it."""
    import pyarrow as pa

    bounds = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(content))]
    )


def _headers(of_each: Sequence[Headers], record: Array) -> Array:
    """Return the headers of each message, given the headers of each record."""
    import pyarrow as pa

    kind = schema().field("headers").type
    if not any(of_each):  # nearly always
        return pa.ListArray.from_arrays(np.zeros(len(record) + 1, np.int32), pa.array([], kind.value_type), kind)
    lists = pa.array([[{"key": key, "value": value} for key, value in each] for each in of_each], kind)
    return lists.take(record)
