"""Jobs beside a sequencer of the process engine: in a process of their own, so that the order keeps its time.

Invariant: the sequencer depends on nothing here. If the child ends, that is logged, and it is started again. A child
whose parent is killed finds its pipe closed, and ends as if it were killed, too: its relays say no farewell. Until then
it runs beside the next parent's child. That does no harm: neither ledgers (`connectors.ledger.process`) nor relays
(`connectors.relay.relay`) mind a second one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING

from connectors.kafka.groups.retrying import HEALTHY_S, LogThrottle
from connectors.kafka.groups.troubles import Troubles
from jobs.terminal.streaming import LOOK_S, Relays, Served, raise_failures, working
from ordering.base.errors import AbcastError

if TYPE_CHECKING:
    from connectors.ledger.process.table_job import LedgerOptions
    from connectors.relay.process.job import ProcessRelay
    from connectors.spark.job import SparkJob

MakeJobs = Callable[[Troubles], "Sequence[SparkJob]"]
"""Makes the jobs, in the child: a function of a module, or a partial of one, with values that can be pickled."""

IsWanted = Callable[[], bool]

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""The waits before a child is started again grow."""
_STOP_S = 60.0
_logger = logging.getLogger(__name__)


def ledger_process(options: LedgerOptions) -> JobsProcess:
    """Return the process of the ledger's jobs."""
    connection = replace(options.connection, waiting=nullcontext)
    make = functools.partial(_ledger_jobs, options._replace(connection=connection, troubles=None))
    return JobsProcess("ledger", options.site, make, options.troubles)


def _ledger_jobs(options: LedgerOptions, troubles: Troubles) -> Sequence[SparkJob]:
    from connectors.ledger.process.casts import ProcessCastJob
    from connectors.ledger.process.job import ProcessLedgerJob

    options = options._replace(troubles=troubles)
    return [ProcessLedgerJob(options), ProcessCastJob(options)]


def relays_process(
    site: str, relays: Relays, served: Served, troubles: Troubles | None, is_wanted: IsWanted | None = None
) -> JobsProcess:
    """Return the process of a site's relays. `is_wanted`: as in `JobsProcess`."""
    connections = {name: replace(each, waiting=nullcontext) for name, each in relays.sites.connections.items()}
    relays = relays._replace(sites=replace(relays.sites, connections=connections))
    return JobsProcess("relays", site, functools.partial(_relay_jobs, relays, served), troubles, is_wanted)


def _relay_jobs(relays: Relays, served: Served, troubles: Troubles) -> Sequence[SparkJob]:
    from jobs.terminal.engine_option import tune

    tune()
    return process_relays(relays, served, troubles)


def process_relays(relays: Relays, served: Served, troubles: Troubles | None = None) -> list[ProcessRelay]:
    """Return the relays as plain Python jobs."""
    from connectors.relay.kinds import relays_of
    from connectors.relay.process.job import ProcessRelay

    return [
        ProcessRelay(kind, relays.sites, direction, *served, troubles)
        for direction in relays.directions
        for kind in relays_of(relays.sites, direction)
    ]


class JobsProcess:
    """Runs jobs in a child. `run` blocks until `stop`, which any thread may call.

    `ready` is set once a child works or has ended: the process is then complete. `troubles` has the end.
    """

    is_principal = False
    keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(
        self, name: str, site: str, make: MakeJobs, troubles: Troubles | None, is_wanted: IsWanted | None = None
    ) -> None:
        """Start nothing yet.

        `name`: of the jobs together, in the plural or for one. `troubles`: of this process. `is_wanted`: whether the
        jobs are to run now; else the child is killed: another process's jobs go on, so these say no farewell.
        """
        self.name = name
        self._is_wanted = is_wanted or (lambda: True)
        self._site, self._make, self._troubles = site, make, troubles or Troubles()
        self.ready = threading.Event()
        self._works_at = float("inf")
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask `run` to end the child, and to return."""
        self._stop.set()

    def run(self) -> None:
        """Keep a child running, while it is wanted, until stopped."""
        wait_s, throttle = FIRST_WAIT_S, LogThrottle()
        while not self._stop.is_set():
            if not self._is_wanted():
                wait_s = FIRST_WAIT_S
                self._troubles.begin(self.name)  # to wait is none
                self.ready.set()
                self._stop.wait(LOOK_S)
                continue
            began = time.monotonic()
            why = self._run_child()
            wait_s = FIRST_WAIT_S if time.monotonic() - began >= HEALTHY_S else min(2 * wait_s, LONGEST_WAIT_S)
            if why and not self._stop.is_set():
                self._troubles.end(self.name, why)
                self.ready.set()
                if throttle.is_due(why):
                    text = "%s: %s The order goes on; its process is started again, now and then."
                    _logger.error(text, self.name, why)
                self._stop.wait(wait_s)

    def _run_child(self) -> str:
        """Run a child to its end; return the sentence of the error that ended its jobs, or of how it ended.

        Returns "" if it is wanted no longer.
        """
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        child = spawning.Process(target=serve, args=(self._site, self._make, theirs), name=f"abcast-{self.name}")
        try:
            child.start()
        except OSError as error:
            ours.close()
            return f"its process can't be started: {error}."
        finally:
            theirs.close()
        ended_with, asked_at, self._works_at = None, float("inf"), float("inf")
        with contextlib.closing(ours):
            while child.is_alive():
                if self._stop.is_set() and asked_at == float("inf"):
                    asked_at = time.monotonic()
                    with contextlib.suppress(OSError):
                        ours.send(None)
                if not self._is_wanted():
                    child.kill()
                    child.join()
                    return ""
                if time.monotonic() - asked_at > _STOP_S:
                    child.kill()
                ended_with = self._take_in(ours) or ended_with
                if time.monotonic() - self._works_at > HEALTHY_S:  # so one that fails again and again shows as ended
                    self._troubles.begin(self.name)
            child.join()
            return self._take_in(ours) or ended_with or _how_it_ended(child.exitcode or 0)

    def _take_in(self, pipe: Pipe) -> str | None:
        """Take in the child's reports; return the sentence of the error that ended it."""
        try:
            is_there = pipe.poll(LOOK_S)
            while is_there:
                job, said = pipe.recv()
                if job == _READY:
                    self.ready.set()
                    self._works_at = time.monotonic()
                elif job == _ENDED:
                    return str(said)
                elif said is None:
                    self._troubles.begin(job)
                elif isinstance(said, str):
                    self._troubles.end(job, said)
                else:
                    self._troubles.put(job, said)
                is_there = pipe.poll(0)  # many jobs together may never be silent for LOOK_S
        except (EOFError, OSError):
            time.sleep(LOOK_S)  # the child is about to end
        return None


def _how_it_ended(code: int) -> str:
    return f"its process was ended by signal {-code}." if code < 0 else f"its process has ended with exit code {code}."


_READY, _ENDED = "(ready)", "(ended)"


class _Reports(Troubles):
    """The troubles of the child's jobs, which it sends to its parent."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe, self._sending = pipe, threading.Lock()
        self._reasons: dict[str, Mapping[str, str]] = {}

    def put(self, job: str, reasons: Mapping[str, str]) -> None:
        """Tell the reasons if they have changed: relays put theirs each second."""
        if self._reasons.get(job) != reasons:
            self._reasons[job] = dict(reasons)
            self.tell(job, dict(reasons))

    def end(self, job: str, why: str) -> None:
        self.tell(job, why)

    def begin(self, job: str) -> None:
        self.tell(job, None)

    def tell(self, job: str, said: object) -> None:
        """Send a report; a parent that is gone needs none."""
        with self._sending, contextlib.suppress(OSError):
            self._pipe.send((job, said))


def serve(site: str, make: MakeJobs, pipe: Pipe) -> None:
    """Run the jobs in this process until the parent says so. End it at once when the parent is gone."""
    from jobs.terminal.logs import log_with, set_up_logging

    for reaching_all in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent gets them, too, and stops this one
        signal.signal(reaching_all, signal.SIG_IGN)
    set_up_logging()
    log_with(site=site)
    reports = _Reports(pipe)
    try:
        with working(make(reports)) as jobs:
            is_ready = False
            while not (pipe.poll(LOOK_S) or all(job.done.is_set() for job in jobs)):
                raise_failures(jobs)
                if not is_ready and all(job.ready.is_set() or job.done.is_set() for job in jobs):
                    is_ready = True
                    reports.tell(_READY, "")
            if pipe.poll(0):
                _take_leave(pipe)
    except (AbcastError, OSError) as error:
        reports.tell(_ENDED, str(error))


def _take_leave(pipe: Pipe) -> None:
    """Take the parent's word that the jobs are to stop. End this process if the parent is gone without it."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
