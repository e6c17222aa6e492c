"""The maintenance of a site's tables and topics, once or periodically: beside the other jobs, or alone.

No promise depends on it, so a failure is logged, and the next run tries again. Its own thread takes the tables' lock; a
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
from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.log.acts import Act, record_act
from connectors.kafka.topics.data_purge import Lacking, lacking_unknown_sites, purge_data
from connectors.kafka.topics.letter_purge import purge_letters
from connectors.kafka.topics.purge import Purged, purge_group
from connectors.kafka.topics.senders import forget_senders, idle_senders
from connectors.kafka.topics.topics import find_groups
from connectors.ledger.maintenance import TableMaintenance, maintain_tables, plan_maintenance
from connectors.ledger.table_lock import StoppedWaiting
from connectors.ledger.table_state import read_table_state
from connectors.spark.job import JobOptions
from ordering.base.errors import AbcastError, BrokerUnreachable, EnvironmentProblem

_logger = logging.getLogger(__name__)


PurgeCopies = Callable[[str, bool], Sequence[Purged]]
"""A function that deletes a group's letters that have arrived at other sites; with True it only counts them."""


class Maintained(NamedTuple):
    """The result of a maintenance, done or planned, and the failures by group, or of "the tables"."""

    tables: Sequence[TableMaintenance]
    topics: list[Purged]
    senders: list[Idle]
    failures: dict[str, AbcastError]


class Idle(NamedTuple):
    """The idle senders of a group to be forgotten, and how many of them are forgotten by now."""

    group: str
    senders: Sequence[str]
    forgotten: int


@dataclass(frozen=True, slots=True)
class MaintenanceOptions:
    """The options of a maintenance; times are in seconds.

    `dead_letters_s`: how long dead letters are kept. `senders_s`: how long idle senders are remembered; None: for ever.
    `letters_s`: how long letters that no member takes are kept. `data_s`: how long DATA is kept; None: for ever.
    `dry_run`: only report. `purge_copies`, `lacking`: given if there are other sites. `act`: written to EPOCH.
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
    wanted: MaintenanceOptions,
    is_ending: Callable[[], bool] = lambda: False,
) -> Maintained:
    """Maintain the tables below --data and the topics of the site's groups. `spark` is called only if it is needed.

    A failure of a group, or of the tables, does not stop the rest: `failures` has it in the end. Raises
    BrokerUnreachable if no broker answers; the groups' error if all fail and no table was maintained; StoppedWaiting if
    `is_ending`; EnvironmentProblem.
    """
    done = Maintained([], [], [], {})
    in_ledger: Mapping[str, int] = {}
    try:
        tables = plan_maintenance(options.data)
        if tables and not wanted.dry_run:
            tables = maintain_tables(spark(), options.data, is_ending)
        done = done._replace(tables=tables)
        if wanted.data_s is not None:
            in_ledger = read_table_state(options.data / "ledger").last_seqno
    except (StoppedWaiting, EnvironmentProblem):
        raise
    except AbcastError as error:
        done.failures["the tables"] = error
    groups = [group for group in find_groups(options.connection, options.site) if options.groups.has(group)]
    silent, is_answered = 0, False
    for group in groups:
        try:
            done.topics.extend(_maintain_topics(options, group, wanted, in_ledger.get(group, 0), done.senders))
            is_answered = True
        except (StoppedWaiting, EnvironmentProblem):
            raise
        except AbcastError as error:
            done.failures[group] = error
            silent += isinstance(error, BrokerUnreachable)
            if silent > 1 and not is_answered:
                raise  # no broker answers
    if groups and done.failures.keys() >= set(groups) and not done.tables:
        raise_unservable(done.failures, done.failures)
    return done


def _maintain_topics(
    options: JobOptions, group: str, wanted: MaintenanceOptions, in_ledger: int, senders: list[Idle]
) -> Iterator[Purged]:
    """Purge a group's topics, one after the other."""
    connection, site = options.connection, options.site
    if wanted.act is not None and not wanted.dry_run:
        record_act(connection, group, site, wanted.act)
    yield from purge_group(connection, group, site, dead_letters_s=wanted.dead_letters_s, dry_run=wanted.dry_run)
    senders += _forget(connection, group, site, wanted)
    yield from purge_letters(connection, group, site, letters_s=wanted.letters_s, dry_run=wanted.dry_run)
    yield from wanted.purge_copies(group, wanted.dry_run)
    yield from _purge_data(options, group, wanted, in_ledger)


def _purge_data(options: JobOptions, group: str, wanted: MaintenanceOptions, in_ledger: int) -> Sequence[Purged]:
    if wanted.data_s is None:
        return []
    return purge_data(
        options.connection,
        group,
        options.site,
        kept_s=wanted.data_s,
        in_ledger=in_ledger,
        lacking=wanted.lacking or lacking_unknown_sites(options.connection),
        dry_run=wanted.dry_run,
    )


def _forget(connection: Connection, group: str, site: str, wanted: MaintenanceOptions) -> list[Idle]:
    if wanted.senders_s is None:
        return []
    rows = idle_senders(connection, group, site, wanted.senders_s)
    done = 0 if wanted.dry_run or not rows else len(forget_senders(connection, group, site, rows).forgotten)
    return [Idle(group, [row.sender for row in rows], done)] if rows else []


class MaintenanceJob:
    """Maintains a site every `every_s` seconds, the first time after that long. `run` blocks until `stop`."""

    name = "maintain"
    is_principal = False
    keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = (AbcastError,)

    def __init__(self, spark: SparkSession, options: JobOptions, every_s: float, wanted: MaintenanceOptions) -> None:
        self._spark = spark
        self._options = options
        self._every_s = every_s
        self._wanted = wanted
        self._stop = threading.Event()
        self.ready = threading.Event()
        self.ready.set()

    def stop(self) -> None:
        """Ask `run` to return after the current step."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Logs an AbcastError, and tries again when the next maintenance is due."""
        while not self._stop.wait(self._every_s):
            began = time.monotonic()
            with contextlib.suppress(StoppedWaiting):
                try:
                    done = maintain(lambda: self._spark, self._options, self._wanted, self._stop.is_set)
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
