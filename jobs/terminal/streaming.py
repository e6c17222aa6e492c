"""Run streaming jobs in this process until a signal, or until one fails that the others can't go on without."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.troubles import Troubles
from jobs.terminal import interruption
from jobs.terminal.logs import log_with, say
from ordering.base.errors import AbcastError, EnvironmentProblem
from ordering.base.names import check_site

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.connection.sites import Direction, Sites
    from connectors.spark.job import JobOptions, SparkJob
    from connectors.storage.location import Location
    from connectors.takeover.agreement import AgreementSettings

    MakeJob = Callable[[SparkSession, JobOptions], SparkJob]


log = logging.getLogger(__name__)

REAL_TIME_SLOTS = 64
"""Partitions that one relay can read in real time: threads, not cores."""
STOPPING = "stopping …"
LOOK_S = 0.2
"""The seconds between two checks whether the jobs are ready, have ended, or are asked to stop."""


class Served(NamedTuple):
    """The groups that a job serves, and the seconds between two looks for new ones."""

    groups: GroupChoice = ALL_GROUPS
    look_every_s: float = LOOK_EVERY_S


EVERYTHING = Served()


def served(groups: str | None, look_every_s: float) -> Served:
    """Return the groups to serve by the command line. Raises UsageError."""
    return Served(ALL_GROUPS if groups is None else GroupChoice.parse(groups), look_every_s)


class Relays(NamedTuple):
    """The sites, and the directions between them to serve."""

    sites: Sites
    directions: Sequence[Direction]


def job_options(
    connection: Connection,
    site: str,
    data: Location,
    max_batch_records: int,
    served: Served = EVERYTHING,
    parallelism: int | None = None,
    work_dir: Path | None = None,
    sites: Sites | None = None,
    troubles: Troubles | None = None,
) -> JobOptions:
    """Return the jobs' options, after checks that the directories or the bucket can be used, and that Kafka answers.

    `sites`: for a sequencer, which then checks that a group does not begin anew at a new home. Raises UsageError,
    BrokerUnreachable, EnvironmentProblem.
    """
    from pathlib import Path

    from connectors.relay.beginning import beginning_of
    from connectors.spark.data_directory import DEFAULT_WORK, check_writable
    from connectors.spark.job import JobOptions
    from connectors.storage.location import RemotePath, check_bucket

    check_site(site)
    log_with(site=site)
    if isinstance(data, RemotePath):
        check_bucket(data)
    work = None if work_dir is None and isinstance(data, Path) else (work_dir or DEFAULT_WORK).absolute()
    if isinstance(data, Path):
        check_writable(data.absolute())
    if work is not None:
        check_writable(work, "--work-dir")
    return JobOptions(
        reachable(connection, served),
        site,
        data.absolute(),
        max_batch_records,
        parallelism,
        *served,
        work_dir=work,
        troubles=troubles or Troubles(),
        check_group=beginning_of(sites, site),
    )


def reachable(connection: Connection, served: Served = EVERYTHING) -> Connection:
    """Return the connection after a check that Kafka answers: users should hear of an absent broker at once.

    Logs a warning if the named groups have no topic yet. Raises UsageError, BrokerUnreachable, EnvironmentProblem.
    """
    from kafka.errors import KafkaError

    from connectors.kafka.topics.topics import find_topics

    try:
        topics = find_topics(connection)
    except KafkaError as error:
        raise EnvironmentProblem(f"Kafka at {connection.bootstrap_servers} refuses the request: {error!r}.") from error
    if served.groups != ALL_GROUPS and not any(served.groups.has(topic.group) for topic in topics):
        log.warning("there is no group %s at %s yet: waiting for one", served.groups, connection.bootstrap_servers)
    return connection


def run_jobs(
    names: Sequence[str],
    options: JobOptions,
    relays: Relays | None = None,
    beside: Sequence[SparkJob] = (),
    more: Sequence[MakeJob] = (),
    agreement: AgreementSettings | None = None,
) -> None:
    """Run the named jobs (`sequence`, `ledger`), relays and `more` in one Spark application until SIGTERM or Ctrl-C.

    Jobs that need no Spark run `beside`, and begin before it starts. `agreement`: of a site that agrees on the order
    with others. Raises the error that ended a job.
    """
    interruption.stop_when_asked(STOPPING)
    with working(beside) as first:
        what = [*names, *(f"relay {direction}" for direction in (relays.directions if relays else ()))]
        say(f"starting Spark for {' and '.join(what)} (about 5 s) …")
        from connectors.spark.session import hand_on_signals

        spark = start_session(f"abcast {' '.join(what)}", cores=task_slots(relays), data=options.data)
        if spark is None:
            return
        with running([*job_classes(names, agreement), *relay_makers(relays), *more], spark, options) as others:
            hand_on_signals(spark, interruption.ask_to_stop)
            await_end([*first, *others])
    spark.stop()


def await_end(jobs: Sequence[JobThread]) -> None:
    """Wait until all jobs have ended; stop them on SIGTERM or Ctrl-C. Raises like `raise_failures`.

    The signals are only noted (`interruption.stop_when_asked`): their handler may not stop a job, which takes locks
    that the interrupted code may hold.
    """
    await_ready(jobs)
    if not any(job.stopping for job in jobs):
        say("ready; Ctrl-C or SIGTERM stops after the current batch")
    _await(jobs, lambda job: job.done)


def await_ready(jobs: Sequence[JobThread]) -> None:
    """Wait until all jobs are ready, or have ended. Raises the error that ended one, as `raise_failures` does."""
    _await(jobs, lambda job: job.ready)


def _await(jobs: Sequence[JobThread], event: Callable[[JobThread], threading.Event]) -> None:
    """Wait until all jobs have come to this event, or have ended; a signal stops them. Raises like `raise_failures`."""
    while True:
        if interruption.is_asked_to_stop():
            for job in jobs:
                if not job.stopping:
                    job.stop()
        waiting = [event(job) for job in jobs if not (event(job).is_set() or job.done.is_set())]
        raise_failures(jobs)
        if not waiting:
            return
        waiting[0].wait(LOOK_S)


def start_session(name: str, *, cores: int | None = None, data: Location | None = None) -> SparkSession | None:
    """Start Spark; return None if the start failed after a signal, which may have ended the JVM, too.

    Call this while signals are only noted (`interruption.stop_when_asked`): pyspark leaves a JVM behind if it is
    interrupted while it launches that.
    """
    from connectors.spark.session import build_session

    try:
        return build_session(name, cores=cores, data=data)
    except Exception:
        if interruption.is_asked_to_stop():
            return None
        raise
    finally:
        interruption.take_back()


def session_of_command(name: str, data: Location | None = None) -> SparkSession:
    """Start Spark for a command that Ctrl-C may interrupt. Raises KeyboardInterrupt for a signal during the start."""
    interruption.stop_when_asked(interruption.SAID)
    spark = start_session(name, data=data)
    is_asked = interruption.is_asked_to_stop()
    interruption.raise_in_order()
    if spark is None or is_asked:
        if spark is not None:
            spark.stop()
        interruption.interrupt()
    return spark


def relay_makers(relays: Relays | None) -> list[MakeJob]:
    """Return the makers of the relays' jobs."""
    if relays is None:
        return []
    from connectors.relay.kinds import relays_of
    from connectors.relay.spark.job import SparkRelay

    return [
        functools.partial(SparkRelay, kind=kind, sites=relays.sites, direction=direction)
        for direction in relays.directions
        for kind in relays_of(relays.sites, direction)
    ]


def task_slots(relays: Relays | None) -> int | None:
    """Return Spark's local threads; None: the default. In real time a relay holds one for each partition it reads."""
    if relays is None or relays.sites.trigger != "real-time":
        return None
    return REAL_TIME_SLOTS * len(relays.directions) + 2


def job_classes(names: Sequence[str], agreement: AgreementSettings | None = None) -> list[MakeJob]:
    """Return the makers of the named jobs; the ledger is two jobs. `agreement`: as in `run_jobs`."""
    from connectors.ledger.casts.job import CastLedgerJob
    from connectors.ledger.job import LedgerJob
    from connectors.sequencer.job import SequencerJob

    by_name: dict[str, list[MakeJob]] = {
        SequencerJob.name: [functools.partial(SequencerJob, agreement=agreement)],
        LedgerJob.name: [LedgerJob, CastLedgerJob],
    }
    return [job for name in names for job in by_name[name]]


class JobThread:
    """A job in a thread of its own, which starts at once."""

    def __init__(self, job: SparkJob) -> None:
        self._job = job
        self._failure: BaseException | None = None
        self._is_reported = False
        self.name = job.name
        self.ready = job.ready
        self.is_principal = job.is_principal
        self.done = threading.Event()
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name=f"abcast-{job.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._job.run()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread by raise_failure
            self._failure = error
        finally:
            self.done.set()

    def stop(self) -> None:
        """Ask the job to stop after the current batch."""
        self.stopping = True
        self._job.stop()

    @property
    def ends_alone(self) -> bool:
        """Whether the others go on if this job fails: it needs another site, or no restart would mend the failure."""
        return self._job.keeps_trying or isinstance(self._failure, self._job.ends_alone_with)

    def raise_failure(self) -> None:
        """Raise the error that ended the job, if there is one that was not reported."""
        if self._failure is not None and not self._is_reported:
            raise self._failure

    def log_failure(self) -> None:
        """Log the error that ended the job, if there is one, once. `raise_failure` then no longer raises it."""
        if self._failure is not None and not self._is_reported:
            self._is_reported = True
            log.error("%s has ended: %s", self._job.name, self._failure, exc_info=_unexpected(self._failure))

    def join(self) -> None:
        """Wait a minute at most until the job's thread has ended."""
        self._thread.join(timeout=60)


_running: list[JobThread] = []


def running_jobs() -> list[JobThread]:
    """Return the jobs of this process that have begun and were not waited for yet. For any thread."""
    return list(_running)


def _unexpected(failure: BaseException) -> BaseException | None:
    return None if isinstance(failure, AbcastError) else failure


def raise_failures(jobs: Sequence[JobThread]) -> None:
    """Raise the error that ended a job; if the job ends alone, only log it, as long as a principal one works."""
    works = any(job.is_principal and not job.done.is_set() for job in jobs)
    for job in jobs:
        if job.ends_alone and works:
            job.log_failure()
        else:
            job.raise_failure()


@contextmanager
def running(makers: Sequence[MakeJob], spark: SparkSession, options: JobOptions) -> Iterator[list[JobThread]]:
    """Make jobs of Spark, and run them like `working`."""
    with working([make(spark, options) for make in makers]) as jobs:
        yield jobs


@contextmanager
def working(each: Sequence[SparkJob]) -> Iterator[list[JobThread]]:
    """Run the jobs in threads; at the end of the block, stop all, and wait for them.

    Raises the error that ended a job, if the block raises none and the error was not logged.
    """
    jobs = [JobThread(job) for job in each]
    _running.extend(jobs)
    try:
        yield jobs
    finally:
        for job in jobs:
            job.stop()
        for job in jobs:
            job.join()
        for job in jobs:
            _running.remove(job)
    for job in jobs:
        job.raise_failure()
