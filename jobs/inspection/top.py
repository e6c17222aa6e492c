"""`abcast top`: the groups of a site, read again and again, the wrong ones first.

On a terminal it is a screen; elsewhere, and with --json, one line of JSON a reading. A thread reads
(`connectors.diagnosis.shared_reading`), so the screen goes on, and Ctrl-C ends it, while Kafka does not answer.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from connectors.diagnosis.shared_reading import LastReading, SharedReading
from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from jobs.inspection.status import COLUMNS, WATCH_S, cells, read_with_ledger
from jobs.terminal.interruption import taken
from jobs.terminal.options import (
    DEFAULT_DATA,
    AsJson,
    BootstrapServers,
    Data,
    Groups,
    KafkaConfig,
    Site,
    connection_to,
    run_script,
)
from jobs.terminal.rows import printable
from ordering.base.errors import counted
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from connectors.diagnosis.status import GroupStatus
    from connectors.diagnosis.statuses import Statuses

_ENDS_WITHIN_S = 1.0
_LATE_S = 10.0
"""The time without a reading that is told. A reading of many groups takes some seconds."""


class Sight(NamedTuple):
    """The newest reading, the reading before, and the sentence of why there is no newer one."""

    site: str
    newest: LastReading[Statuses]
    before: LastReading[Statuses] | None = None
    error: str = ""

    def next(self, reading: LastReading[Statuses] | None) -> Sight:
        """Return the sight after one more reading, which may be the same as before, or none: then soon an error."""
        if reading is not None and reading.value is None:
            return self._replace(error=reading.error)
        if reading is None or reading.began_at <= self.newest.began_at:
            age_s = self.newest.age_s
            return self if age_s < _LATE_S else self._replace(error=f"Kafka has not answered for {age_s:,.0f} s.")
        return Sight(self.site, reading, self.newest)

    @property
    def statuses(self) -> Statuses:
        """The newest status of the groups."""
        assert self.newest.value is not None
        return self.newest.value

    def per_s(self, row: GroupStatus) -> tuple[float | None, float | None]:
        """Return the growth of the group's last seqno and of its lag a second, between the two readings.

        None for a group that was not read before, or was made anew.
        """
        earlier = self.before.value.rows if self.before is not None and self.before.value is not None else ()
        was = next((each for each in earlier if each.group == row.group), None)
        if was is None or self.before is None or row.last_seqno < was.last_seqno:
            return None, None
        seconds = self.newest.began_at - self.before.began_at
        return (row.last_seqno - was.last_seqno) / seconds, (row.lag - was.lag) / seconds

    def to_json(self) -> dict[str, Any]:
        """Return plain values: as /api/status has a site, with the growth of each group, and the time."""
        plain = self.statuses.to_json(self.site)
        for values, row in zip(plain["groups"], self.statuses.rows, strict=True):
            values["ordered_per_s"], values["lag_per_s"] = self.per_s(row)
        at = datetime.fromtimestamp(time.time() - self.newest.age_s, timezone.utc)
        return {"at": at.isoformat(timespec="milliseconds"), **plain, "error": self.error}


def top(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    groups: Groups = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    every_s: Annotated[
        float, typer.Option("--every-s", min=0.1, max=86_400, help="Seconds between two readings.")
    ] = WATCH_S,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many readings.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the groups live, the wrong ones first. Ctrl-C ends it.

    The columns are as in `abcast status`; `rate` and `lag/s` are the growth since the last reading. A group marked
    with ! has a sentence above. Without a terminal, or with --json, a reading is a line of JSON.
    """
    connection = connection_to(bootstrap_servers, kafka_config, "top")
    chosen = ALL_GROUPS if groups is None or group is not None else GroupChoice.parse(groups)
    of_ledger: list[str] = []

    def read() -> Statuses:
        of_ledger.clear()
        return read_with_ledger(connection, site, data, chosen, group, say=of_ledger.append)

    show_all = _on_terminal if sys.stdout.isatty() and not as_json else _as_lines
    reading = SharedReading(read)
    try:
        began_at = time.monotonic()
        first = Sight(site, LastReading(read(), "", began_at, 0.0))
        with show_all() as show:
            for number, sight in enumerate(_sights(first, reading, every_s), 1):
                show(sight, of_ledger)
                if number == count:
                    break
    except KeyboardInterrupt:
        taken()
    finally:
        reading.close(_ENDS_WITHIN_S)


def _sights(sight: Sight, reading: SharedReading[Statuses], every_s: float) -> Iterator[Sight]:
    while True:
        asked_at = time.monotonic()
        yield sight
        time.sleep(max(0.0, asked_at + every_s - time.monotonic()))
        while (later := sight.next(reading.ask(0.0, every_s))) is sight:
            pass  # a reading goes on
        sight = later


Show = Callable[[Sight, Sequence[str]], None]


@contextmanager
def _as_lines() -> Iterator[Show]:
    def show(sight: Sight, of_ledger: Sequence[str]) -> None:
        del of_ledger  # `ledger_lag` is absent
        typer.echo(json.dumps(sight.to_json()))

    yield show


@contextmanager
def _on_terminal() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        logging.disable(logging.ERROR)  # the screen has no place for lines of the log
        try:
            yield lambda sight, of_ledger: live.update(screen_of(sight, of_ledger, console.height), refresh=True)
        finally:
            logging.disable(logging.NOTSET)


def screen_of(sight: Sight, of_ledger: Iterable[str], height: int) -> RenderableType:
    """Return the screen: the wrong things, in half of the `height` at most, then the groups."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from connectors.diagnosis.sentences import wrong_with

    found, age_s = sight.statuses, sight.newest.age_s
    wrong = {row.group: list(wrong_with(row, sight.site)) for row in found.rows}
    rows = sorted(found.rows, key=lambda row: (not row.is_stuck, not wrong[row.group], -row.rate, row.group))
    sentences = [
        *filter(None, [sight.error]),
        *map(str, found.errors.values()),
        *(f"{row.group}: {sentence}" for row in rows for sentence in wrong[row.group]),
        *of_ledger,
    ]
    is_well = f"{len(sentences):,} to look at" if sentences else "nothing is wrong"
    most = max(1, height // 2 - 1)
    if len(sentences) > most:
        sentences[most:] = [f"{len(sentences) - most:,} more: see `abcast status`"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in (*COLUMNS, "lag/s"):
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        ordered, lag = sight.per_s(row)
        mark = "! " if wrong[row.group] else ""
        values = cells(row if ordered is None else row._replace(rate=ordered))
        texts = [f"{mark}{values[0]}", *values[1:], "-" if lag is None else f"{lag:+,.1f}"]
        table.add_row(*(Text(printable(text)) for text in texts), style="red" if mark else "")
    age = "" if age_s < 2 * WATCH_S else f", {age_s:,.0f} s ago"
    head = Text(f"{counted(len(rows), 'group')} at site {sight.site}{age}: {is_well}", style="bold")
    return Group(head, *(Text(printable(sentence), style="red") for sentence in sentences), Text(), table)


if __name__ == "__main__":
    run_script(top)
