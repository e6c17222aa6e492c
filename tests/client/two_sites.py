"""A hub of two sites in memory: relays in threads, which may be stopped anywhere, and continue by their marks.

They change a record as the relays on Spark do (`connectors.relay.rules`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.codec import RELAYED_FIELDS
from connectors.kafka.codec.headers import HEADER, first_fields
from connectors.kafka.transport import PlainRecord
from connectors.testing import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import Headers

PAUSE_S = 0.005
REPEATED = 3
"""Each relay that starts copies this many records again."""

Marked = Callable[[PlainRecord, str], Headers]


def _as_cast(record: PlainRecord, mark: str) -> Headers:
    fields = [*first_fields(record.headers, len(CAST_FIELDS) - 1), mark.encode()]
    return (HEADER, b" ".join(fields)), *((name, value) for name, value in record.headers if name != HEADER)


def _as_forward(record: PlainRecord, mark: str) -> Headers:
    (_, text), *others = record.headers
    return (HEADER, b"%b %b -" % (text, mark.encode())), *others


def _as_it_is(record: PlainRecord, _mark: str) -> Headers:
    return tuple(record.headers)


class TinyRelay:
    """Fills a topic from another. The context manager runs it; at its end it stops at any record."""

    def __init__(
        self, source: MemoryConnection, target: MemoryConnection, names: tuple[Topic, Topic], marked: Marked
    ) -> None:
        self._source, self._target = source, target
        self._from, self._to = map(str, names)
        self._site = names[0].site
        self._marked = marked
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TinyRelay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it."""
        self._stopping.set()
        self._thread.join(15)

    def _run(self) -> None:
        logs = self._source.topics.partitions
        places = [place for place in list(logs) if place.topic == self._from]
        carried = {place: max(0, self._copied(place) - REPEATED) for place in places}
        while not self._stopping.wait(PAUSE_S):
            for place in places:
                copy = TopicPartition(self._to, place.partition)
                for record in itertools.islice(logs[place], carried[place], len(logs[place])):
                    self._target.topics.partitions.setdefault(copy, [])
                    mark = f"{self._site}/{place.topic}-{place.partition}:{record.offset}"
                    self._target.topics.append(copy, record.key, record.value, self._marked(record, mark))
                    carried[place] += 1
                    if self._stopping.is_set():
                        return

    def _copied(self, place: TopicPartition) -> int:
        """Count a partition's records in the copy."""
        copy = self._target.topics.partitions.get(TopicPartition(self._to, place.partition), [])
        if self._marked is _as_it_is:
            return len({(record.key, record.value, tuple(record.headers)) for record in copy})
        marks = (_mark_of(record) for record in reversed(copy))
        return next((offset + 1 for offset in marks if offset is not None), 0)


def _mark_of(record: PlainRecord) -> int | None:
    fields: Sequence[str] = CAST_FIELDS if ".cast." in record.topic else RELAYED_FIELDS
    mark = first_fields(record.headers, len(fields))[fields.index("RELAYED_FROM")]
    return int(mark.rpartition(b":")[2])


def relays(home: MemoryConnection, away: MemoryConnection, group: str) -> list[TinyRelay]:
    """Return all relays between the home nyc and sfo."""

    def of(role: str, site: str, neighbour: str = "") -> Topic:
        return Topic(group, role, site, neighbour)  # type: ignore[arg-type]

    return [
        TinyRelay(away, home, (of("forward", "sfo"), of("relayed", "nyc", "sfo")), _as_forward),
        TinyRelay(home, away, (of("data", "nyc"), of("data", "sfo")), _as_it_is),
        TinyRelay(away, home, (of("cast", "sfo"), of("cast", "sfo")), _as_cast),
        TinyRelay(home, away, (of("cast", "nyc"), of("cast", "nyc")), _as_cast),
    ]
