"""The order as it comes, for pages that look at it. DATA is followed only while somebody asks.

All pages that look at a group share one reader. It ends ASKED_WITHIN_S after the last question, so a page that is
closed costs nothing. A reader keeps the newest KEPT records. In a flood it does not follow each: it reads for a second,
and goes on near the end, so that a page shows a part of the order, and the gap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from kafka.errors import KafkaError

from connectors.diagnosis.dead_letters import StoredLetter, read_dead_letters
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.log.effective import Effective
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable, UsageError
from ordering.base.names import check_group

ASKED_WITHIN_S = 10.0
"""The seconds without a question after which a reader ends."""
KEPT = 1000
MOST_FEEDS = 8
"""The groups that are followed at the same time."""
MOST_WAITING = 16
"""The askers that wait for something new at the same time: half of an endpoint's clients, so that scrapers get in."""
MOST_RECORDS = 300
"""The records in one answer."""
MOST_TEXT = 200
"""The characters shown of a payload."""
_BACK = 100
"""The seqnos before the end with which a reader begins, and goes on after a flood."""
_BEHIND = 2000
"""The records of DATA behind which a reader goes on at the end."""
_BEHIND_EVERY_S = 1.0
"""The least seconds between two questions to Kafka for the end."""
_AGAIN_S = 0.2
_AFTER_A_JUMP_S = 1.0
_AFTER_AN_ERROR_S = 2.0
_LETTERS = 5
_LETTERS_EVERY_S = 10.0

_logger = logging.getLogger(__name__)


class OrderFeed:
    """The newest records of a group's order. Thread-safe. `payloads`: whether to show them."""

    def __init__(self, connection: Connection, group: str, site: str, *, payloads: bool) -> None:
        self._connection, self._group, self._site, self._payloads = connection, group, site, payloads
        self._changed = threading.Condition()
        self._records: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._letters: list[dict[str, Any]] = []
        self._error = self._letters_error = ""
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def is_followed(self) -> bool:
        """Whether the reader runs."""
        return self._thread is not None

    def start(self) -> None:
        """Let the reader run for ASKED_WITHIN_S from now on."""
        with self._changed:
            self._asked_at = time.monotonic()
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._run, name="abcast-order", daemon=True)
                thread.start()
                self._thread = thread

    def ask(self, after: int, wait_s: float) -> dict[str, Any]:
        """Return the records behind seqno `after`, the newest ones; wait so long for the first.

        `last` is the newest seqno: below `after`, the group was made anew, and all its records are behind. `error`: why
        there is nothing new. `dead_letters_error`: why there are no dead letters.
        """
        self.start()
        with self._changed:
            self._changed.wait_for(lambda: self._last != after or bool(self._error) or self._stop.is_set(), wait_s)
            behind = after if after <= self._last else 0
            return {
                "records": [each for each in self._records if each["seqno"] > behind][-MOST_RECORDS:],
                "last": self._last,
                "dead_letters": self._letters,
                "dead_letters_error": self._letters_error,
                "error": self._error,
            }

    def close(self, wait_s: float) -> None:
        """End the reader, and wait so long for it."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(wait_s)

    @property
    def _last(self) -> int:
        return self._records[-1]["seqno"] if self._records else 0

    def _is_asked(self) -> bool:
        return not self._stop.is_set() and time.monotonic() - self._asked_at < ASKED_WITHIN_S

    def _run(self) -> None:
        try:
            while self._is_asked():
                try:
                    with closing(self._connection.consumer()) as consumer:
                        self._follow(consumer)
                except Exception as error:  # noqa: BLE001 - told on the page; the reader goes on
                    self._tell([], error=self._sentence(error), is_anew=isinstance(error, HistoryChanged))
                    self._stop.wait(_AFTER_AN_ERROR_S)
        finally:
            with self._changed:
                self._thread = None
                self._records.clear()  # the next page begins near the end of DATA

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, AbcastError):
            return str(error)
        warn_seldom(_logger, "the order of %s is not shown: %r", self._group, error)
        return f"{type(error).__name__}: see the log of this job."

    def _follow(self, consumer: Consumer) -> None:
        """Follow DATA until nobody asks. Raises AbcastError, KafkaError."""
        cursor, looked_at, letters_at = self._cursor(consumer, _BACK), float("-inf"), float("-inf")
        while self._is_asked():
            taken = cursor.poll(_AGAIN_S)
            consumer.rest()
            self._tell(taken)
            if time.monotonic() - letters_at >= _LETTERS_EVERY_S:
                self._read_letters()
                letters_at = time.monotonic()
            if taken and time.monotonic() - looked_at >= _BEHIND_EVERY_S:
                looked_at = time.monotonic()
                if cursor.end() - cursor.position > _BEHIND:
                    self._stop.wait(_AFTER_A_JUMP_S)
                    cursor = self._cursor(consumer, _BACK)
                    continue
            if taken:
                self._stop.wait(_AGAIN_S)

    def _read_letters(self) -> None:
        """Read the newest dead letters. Who may not read them is shown the order alone."""
        letters, said = list[dict[str, Any]](), ""
        try:
            found = read_dead_letters(self._connection, self._group, self._site, last=_LETTERS)
            letters = [_letter(each) for each in found]
        except (AbcastError, KafkaError) as error:
            said = f"Dead letters are not shown: {self._sentence(error)}"
        with self._changed:
            self._letters, self._letters_error = letters, said

    def _cursor(self, consumer: Consumer, back: int) -> DataCursor:
        with DataLog(self._connection, self._group, self._site) as data:
            try:
                start = self._start(data, back)
            except HistoryUnavailable:  # retention has dropped the record before the last hundred
                start = self._start(data, 0)
            return DataCursor(consumer, data.partition, start)

    def _start(self, data: DataLog, back: int) -> Start:
        end = data.end()
        state = data.state(end)
        if state.seqno < self._last:  # the group was made anew while there was an error
            self._tell([], is_anew=True)
        return data.after(max(0, state.seqno - back), known=(end, state))

    def _tell(self, taken: Iterable[Effective], error: str = "", *, is_anew: bool = False) -> None:
        with self._changed:
            if is_anew:
                self._records.clear()
            for each in taken:
                if each.seqno > self._last:
                    self._records.append(self._plain(each))
            self._error = error
            self._changed.notify_all()

    def _plain(self, record: Effective) -> dict[str, Any]:
        took_ms = record.timestamp_ms - record.forwarded_at_ms if record.forwarded_at_ms else None
        plain: dict[str, Any] = {
            "seqno": record.seqno,
            "sender": record.sender,
            "local_seqno": record.local_seqno,
            "kind": record.kind,
            "epoch": record.epoch,
            "view": record.view,
            "at_ms": record.timestamp_ms,
            "took_ms": took_ms,
            "bytes": len(record.value or b""),
        }
        return {**plain, "payload": _text(record.value)} if self._payloads else plain


def _text(raw: bytes | None) -> str:
    """Return bytes from outside as text that is short enough to show."""
    text = (raw or b"")[: 4 * MOST_TEXT].decode("utf-8", "replace")
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _letter(letter: StoredLetter) -> dict[str, Any]:
    return {
        "at_ms": letter.at_ms,
        "reason": letter.reason[:MOST_TEXT],
        "sender": _text(letter.sender),
        "source": letter.source[:MOST_TEXT],
    }


class NotFollowed(NamedTuple):
    """A sentence on why there is no answer. `is_unknown`: the asker named a group that is not shown."""

    sentence: str
    is_unknown: bool


class OrderFeeds:
    """The feeds of a process, by site and group. Thread-safe. `has`: whether the process shows a group."""

    def __init__(self, kafkas: Mapping[str, Connection], has: Callable[[str], bool], *, payloads: bool) -> None:
        self._kafkas, self._has, self._payloads = kafkas, has, payloads
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(MOST_WAITING)
        self._closed = False
        self._feeds: dict[tuple[str, str], OrderFeed] = {}

    def ask(self, site: str, group: str, after: int, wait_s: float) -> dict[str, Any] | NotFollowed:
        """Return what `OrderFeed.ask` returns, or why not. Beyond MOST_WAITING askers, nobody waits."""
        try:
            if site not in self._kafkas or not self._has(check_group(group)):
                return NotFollowed("this process shows no such group.", is_unknown=True)
        except UsageError as error:
            return NotFollowed(str(error), is_unknown=True)
        feed = self._started(site, group)
        if isinstance(feed, NotFollowed):
            return feed
        waits = self._waiting.acquire(blocking=False)
        try:
            return feed.ask(after, wait_s if waits else 0.0)
        finally:
            if waits:
                self._waiting.release()

    def _started(self, site: str, group: str) -> OrderFeed | NotFollowed:
        with self._lock:
            if self._closed:
                return NotFollowed("this process stops.", is_unknown=False)
            feed = self._feeds.get((site, group))
            if feed is None:
                self._feeds = {key: each for key, each in self._feeds.items() if each.is_followed}
                if len(self._feeds) >= MOST_FEEDS:
                    return NotFollowed(f"{MOST_FEEDS} groups are followed already: close a page.", is_unknown=False)
                feed = OrderFeed(self._kafkas[site], group, site, payloads=self._payloads)
                self._feeds[site, group] = feed
            feed.start()  # before another group's asker can take it for one that nobody follows
            return feed

    def close(self, wait_s: float) -> None:
        """End all feeds, and begin none."""
        with self._lock:
            self._closed = True
        for feed in self._feeds.values():
            feed.close(wait_s)
