"""The answers of a job's open port: a page, whether it lives, whether it works, its metrics, its groups' status.

`/healthz` and `/readyz` are told from memory: they ask neither Kafka nor a JVM. `/metrics` and `/api/status` share one
reading of the status for each site (`connectors.diagnosis.shared_reading`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from connectors.diagnosis import metrics
from connectors.diagnosis.endpoint import Answers, HttpAnswer, Query
from connectors.diagnosis.order_feed import NotFollowed, OrderFeeds
from connectors.diagnosis.page import page
from connectors.diagnosis.shared_reading import LastReading, SharedReading
from connectors.diagnosis.statuses import Statuses
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.log.sign_of_life import SILENT_AFTER_S

FRESH_S = 2.0
"""The age of a status that serves the next asker, too."""
ASKS_FOR_S = 8.0
"""The longest wait for a status: scrapers give up after 10 s."""
ORDER_WAIT_S = 2.0
"""The longest wait for something new in the order."""
_DIGITS = 18
CPU_SHARE = 0.01
"""The part of a core that metrics may take, without the threads of Kafka's client, which take as much again: with many
groups their figures are older than FRESH_S.
"""
SEEN_CPU_SHARE = 0.3
"""The same for `/api/status`, which somebody looks at."""
STALE_S = 60.0
"""The age from which figures are no metrics any more: Kafka does not answer."""


class WatchedJob(Protocol):
    """A job of this process. It ends at the latest when no principal one is left."""

    name: str
    is_principal: bool
    ready: threading.Event
    done: threading.Event


_FIRST = "The first reading goes on: Kafka has not answered yet."


class Monitor:
    """The answers of one process. Thread-safe.

    `site`: whose groups it sequences. `read`: read the status of each site. `jobs`: returns the running jobs. `feeds`:
    for `/api/order`.
    """

    def __init__(
        self,
        site: str,
        read: Mapping[str, Callable[[], Statuses]],
        jobs: Callable[[], Sequence[WatchedJob]],
        troubles: Troubles,
        feeds: OrderFeeds,
    ) -> None:
        self._site, self._jobs, self._troubles, self._feeds = site, jobs, troubles, feeds
        self._readings = {name: SharedReading(of_site) for name, of_site in read.items()}
        self._registry = metrics.registry_of(self._observe)

    def answers(self) -> Answers:
        """Return the functions that answer, by path."""
        whole = page()
        return {
            "/": lambda _: whole,
            "/healthz": lambda _: self._health(),
            "/readyz": lambda _: self._readiness(),
            "/metrics": lambda _: HttpAnswer(metrics.exposed(self._registry), content_type=metrics.CONTENT_TYPE),
            "/api/status": lambda _: self._status(),
            "/api/order": self._order,
        }

    def close(self, wait_s: float) -> None:
        """Read nothing more, and wait so long for each reading under way."""
        self._feeds.close(wait_s)
        for reading in self._readings.values():
            reading.close(wait_s)

    def _health(self) -> HttpAnswer:
        jobs = self._jobs()
        if jobs and all(job.done.is_set() for job in jobs if job.is_principal):
            return HttpAnswer("all jobs have ended\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return HttpAnswer("alive\n" if jobs else "starting\n")

    def _readiness(self) -> HttpAnswer:
        wrong = list(self._wrong())
        notes = [f"{group}: {why}" for group, why in self._troubles.not_served().items()]
        lines = "".join(f"{line}\n" for line in (*(wrong or ["ready"]), *notes))
        return HttpAnswer(lines, HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)

    def _wrong(self) -> Iterator[str]:
        """Yield the reasons why this process does not do its work. A group that it reports to leave out is none."""
        jobs = self._jobs()
        if not jobs or all(job.done.is_set() for job in jobs if job.is_principal):
            yield "starting, or stopping: no job runs"
        for job in jobs:
            if not job.ready.is_set() and not job.done.is_set():
                yield f"{job.name} is starting"
        ended = self._troubles.ended()
        for name, why in ended.items():
            yield f"{name} has ended: {why}"
        for job in jobs:
            if job.done.is_set() and job.name not in ended:
                yield f"{job.name} has ended"
        for group, age_s in self._troubles.unsigned_s().items():
            if age_s > SILENT_AFTER_S:
                yield f"{group}: its sequencer has been silent for {age_s:,.0f} s"

    def _observe(self) -> metrics.Observed:
        seen = dict(self._ask(CPU_SHARE))
        found = {site: reading for site, reading in seen.items() if reading is not None and _is_new(reading)}
        return metrics.Observed(
            {site: reading.value for site, reading in found.items() if reading.value is not None},
            max((reading.age_s for reading in found.values()), default=None),
            self._ready(),
            self._troubles.unsigned_s(),
            self._site,
        )

    def _ready(self) -> dict[str, bool]:
        ended = self._troubles.ended()
        return {
            job.name: job.ready.is_set() and not job.done.is_set() and job.name not in ended for job in self._jobs()
        }

    def _order(self, query: Query) -> HttpAnswer:
        after = query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= _DIGITS):
            return _json({"error": "after is a seqno."}, HTTPStatus.BAD_REQUEST)
        told = self._feeds.ask(query.get("site", self._site), query.get("group", ""), int(after), ORDER_WAIT_S)
        if isinstance(told, NotFollowed):
            status = HTTPStatus.NOT_FOUND if told.is_unknown else HTTPStatus.SERVICE_UNAVAILABLE
            return _json({"error": told.sentence}, status)
        return _json(told, HTTPStatus.OK)

    def _status(self) -> HttpAnswer:
        told: list[dict[str, Any]] = []
        for site, reading in self._ask(SEEN_CPU_SHARE):
            if reading is not None and reading.value is not None:
                told.append({**reading.value.to_json(site), "age_s": round(reading.age_s, 3)})
            else:
                told.append({"site": site, "error": reading.error if reading else _FIRST})
        is_told = any("groups" in each for each in told)
        status = HTTPStatus.OK if is_told else HTTPStatus.SERVICE_UNAVAILABLE
        return _json({"sites": told, "jobs": self._ready()}, status)

    def _ask(self, cpu_share: float) -> Iterator[tuple[str, LastReading[Statuses] | None]]:
        """Yield the last reading of each site: a new one, unless readings cost more than that share, or take long."""
        until = time.monotonic() + ASKS_FOR_S
        for site, reading in self._readings.items():
            yield site, reading.ask(FRESH_S, until - time.monotonic(), cpu_share)


def _json(value: Mapping[str, Any], status: HTTPStatus) -> HttpAnswer:
    return HttpAnswer(f"{json.dumps(value)}\n", status, "application/json")


def _is_new(reading: LastReading[Statuses]) -> bool:
    return reading.age_s <= max(STALE_S, 2 * reading.cpu_s / CPU_SHARE)
