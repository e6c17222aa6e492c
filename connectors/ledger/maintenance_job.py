"""The care of the tables and topics of a site, once and again: beside the other jobs, or alone.

Nothing rests on it, so what fails is told, and tried again at the next time. Its own thread takes the tables' lock; a
stop waits for the merge of one group at most.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import SparkSession

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.unservable_groups import raise_unfit
from connectors.kafka.log.acts import Act, tell
from connectors.kafka.topics.data_purge import Lacking, lacking_unknown_sites, purge_data
from connectors.kafka.topics.letter_purge import purge_letters
from connectors.kafka.topics.purge import Purged, purge_group
from connectors.kafka.topics.senders import forget_senders, idle_senders
from connectors.kafka.topics.topics import find_groups
from connectors.ledger.maintenance import Care, maintain_tables, plan_care
from connectors.ledger.table_lock import StoppedWaiting
from connectors.ledger.table_state import read_table_state
from connectors.spark.job import JobOptions
from ordering.base.errors import AbcastError, BrokerUnreachable, EnvironmentProblem

_logger = logging.getLogger(__name__)


PurgeCopies = Callable[[str, bool], Sequence[Purged]]
"""Deletes a group's letters to other sites that were carried; True: only says which."""


class Maintained(NamedTuple):
    """What was done, or is to be done; and what failed, by group."""

    tables: Sequence[Care]
    topics: list[Purged]
    senders: list[Idle]
    failures: dict[str, AbcastError]


class Idle(NamedTuple):
    """The idle senders of a group: those that are to be forgotten, and how many of them are by now."""

    group: str
    senders: Sequence[str]
    forgotten: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """How long dead letters are kept, idle senders remembered (None: for ever), and letters that nobody takes kept, in
    seconds.

    `dry_run`: nothing is to be done but said. `data_s`: so long DATA is kept, None: for ever. `purge_copies` and
    `lacking`: for who knows of other sites. `act`: what EPOCH is to tell of it.
    """

    dead_letters_s: float = 30 * 86_400.0
    senders_s: float | None = None
    letters_s: float = 30 * 86_400.0
    dry_run: bool = False
    purge_copies: PurgeCopies = lambda *_: ()
    data_s: float | None = None
    lacking: Lacking | None = None
    act: Act | None = None


def maintain(
    spark: Callable[[], SparkSession],
    options: JobOptions,
    wishes: Wishes,
    is_ending: Callable[[], bool] = lambda: False,
) -> Maintained:
    """Take care of the tables below --data and of the topics of the site's groups; Spark is asked for if it is needed.

    A group that fails ends no other, and the tables none: `failures` has what is wrong, once all is done. Raises
    BrokerUnreachable if nobody answers; what is wrong, if it is so with all groups; StoppedWaiting if `is_ending`.
    """
    done = Maintained([], [], [], {})
    in_ledger: Mapping[str, int] = {}
    try:
        tables = plan_care(options.data)
        if tables and not wishes.dry_run:
            tables = maintain_tables(spark(), options.data, is_ending)
        done = done._replace(tables=tables)
        if wishes.data_s is not None:
            in_ledger = read_table_state(options.data / "ledger").last_seqno
    except (StoppedWaiting, EnvironmentProblem):
        raise
    except AbcastError as error:
        done.failures["the tables"] = error
    groups = [group for group in find_groups(options.connection, options.site) if options.groups.has(group)]
    silent, is_answered = 0, False
    for group in groups:
        try:
            done.topics.extend(_care_of_topics(options, group, wishes, in_ledger.get(group, 0), done.senders))
            is_answered = True
        except (StoppedWaiting, EnvironmentProblem):
            raise
        except AbcastError as error:
            done.failures[group] = error
            silent += isinstance(error, BrokerUnreachable)
            if silent > 1 and not is_answered:
                raise  # nobody is there
    if groups and len(done.failures) == len(groups) and not done.tables:
        raise_unfit(done.failures, groups)
    return done


def _care_of_topics(
    options: JobOptions, group: str, wishes: Wishes, in_ledger: int, senders: list[Idle]
) -> Iterator[Purged]:
    """Purge a group's topics, one after the other."""
    what = options.connection, group, options.site
    if wishes.act is not None and not wishes.dry_run:
        tell(*what, wishes.act)
    yield from purge_group(*what, dead_letters_s=wishes.dead_letters_s, dry_run=wishes.dry_run)
    senders += _forget(*what, wishes)
    yield from purge_letters(*what, letters_s=wishes.letters_s, dry_run=wishes.dry_run)
    yield from wishes.purge_copies(group, wishes.dry_run)
    yield from _purge_data(options, group, wishes, in_ledger)


def _purge_data(options: JobOptions, group: str, wishes: Wishes, in_ledger: int) -> Sequence[Purged]:
    if wishes.data_s is None:
        return []
    return purge_data(
        *(options.connection, group, options.site),
        kept_s=wishes.data_s,
        in_ledger=in_ledger,
        lacking=wishes.lacking or lacking_unknown_sites(options.connection),
        dry_run=wishes.dry_run,
    )


def _forget(connection: Connection, group: str, site: str, wishes: Wishes) -> list[Idle]:
    if wishes.senders_s is None:
        return []
    rows = idle_senders(connection, group, site, wishes.senders_s)
    done = 0 if wishes.dry_run or not rows else len(forget_senders(connection, group, site, rows).forgotten)
    return [Idle(group, [row.sender for row in rows], done)] if rows else []


class MaintenanceJob:
    """Does so every `every_s` seconds, first after as long. `run` blocks until `stop`."""

    name = "maintain"
    is_principal = False
    keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = (AbcastError,)

    def __init__(self, spark: SparkSession, options: JobOptions, every_s: float, wishes: Wishes) -> None:
        self._spark = spark
        self._options = options
        self._every_s = every_s
        self._wishes = wishes
        self._stop = threading.Event()
        self.ready = threading.Event()
        self.ready.set()

    def stop(self) -> None:
        """Ask `run` to return after what is in hand."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped."""
        while not self._stop.wait(self._every_s):
            began = time.monotonic()
            with contextlib.suppress(StoppedWaiting):
                try:
                    done = maintain(lambda: self._spark, self._options, self._wishes, self._stop.is_set)
                except StoppedWaiting:
                    raise
                except AbcastError as error:
                    _logger.warning("maintain: %s Trying again in %.0f s.", error, self._every_s)
                    continue
                for failure in map(str, done.failures.values()):
                    _logger.warning("maintain: %s Trying again in %.0f s.", failure, self._every_s)
                _logger.info(
                    "maintain: %d files merged, %d deleted, %d records purged, %d senders forgotten in %.1f s",
                    sum(each.merged for each in done.tables),
                    sum(each.deleted for each in done.tables),
                    sum(each.records for each in done.topics),
                    sum(each.forgotten for each in done.senders),
                    time.monotonic() - began,
                )
