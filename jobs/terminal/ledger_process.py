"""The ledger beside a sequencer of the process engine: in a process of its own, so that the order keeps its time.

Invariant: the sequencer depends on nothing here. If the child ends, that is logged, and it is started again. A child
whose parent is killed finds its pipe closed, and ends in order. Until then it runs beside the next parent's child, and
nothing is written twice (`connectors.ledger.process`).
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING

from connectors.kafka.groups.retrying import HEALTHY_S, LogThrottle
from connectors.kafka.groups.troubles import Troubles
from jobs.terminal.streaming import LOOK_S, raise_failures, working
from ordering.base.errors import AbcastError

if TYPE_CHECKING:
    from connectors.ledger.process.table_job import LedgerOptions

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""The waits before a child is started again grow."""
PROVEN_S = 10.0
"""The work of a child after which an earlier one's end is over: one that fails again and again shows as ended."""
_STOP_S = 60.0
_logger = logging.getLogger(__name__)


class LedgerProcess:
    """Runs the ledger's jobs in a child. `run` blocks until `stop`, which any thread may call.

    `ready` is set once a child works or has ended: the process is then complete. `troubles` has the end.
    """

    name = "ledger"
    is_principal = False
    keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._troubles = options.troubles or Troubles()
        self.ready = threading.Event()
        self._works_at = float("inf")
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask `run` to end the child, and to return."""
        self._stop.set()

    def run(self) -> None:
        """Keep a child running until stopped."""
        wait_s, throttle = FIRST_WAIT_S, LogThrottle()
        while not self._stop.is_set():
            began = time.monotonic()
            why = self._run_child() or "its process has ended."
            wait_s = FIRST_WAIT_S if time.monotonic() - began >= HEALTHY_S else min(2 * wait_s, LONGEST_WAIT_S)
            if not self._stop.is_set():
                self._troubles.end(self.name, why)
                self.ready.set()
                if throttle.is_due(why):
                    _logger.error("ledger: %s The order goes on; the ledger is started again, now and then.", why)
                self._stop.wait(wait_s)

    def _run_child(self) -> str | None:
        """Run a child to its end; return the sentence of the error that ended its jobs, if one did."""
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        connection = replace(self._options.connection, waiting=nullcontext)
        options = self._options._replace(connection=connection, troubles=None)
        child = spawning.Process(target=serve, args=(options, theirs), name="abcast-ledger")
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
                if time.monotonic() - asked_at > _STOP_S:
                    child.kill()
                ended_with = self._take_in(ours) or ended_with
                if time.monotonic() - self._works_at > PROVEN_S:
                    self._troubles.begin(self.name)
            child.join()
            return self._take_in(ours) or ended_with

    def _take_in(self, pipe: Pipe) -> str | None:
        """Take in the child's reports; return the sentence of the error that ended it."""
        try:
            while pipe.poll(LOOK_S):
                job, said = pipe.recv()
                if job == _READY:
                    self.ready.set()
                    self._works_at = time.monotonic()
                elif job == _ENDED:
                    return str(said)
                else:
                    self._troubles.put(job, said)
        except (EOFError, OSError):
            time.sleep(LOOK_S)  # the child is about to end
        return None


_READY, _ENDED = "(ready)", "(ended)"


class _Reports(Troubles):
    """The troubles of the child's jobs, which it sends to its parent."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe, self._sending = pipe, threading.Lock()

    def put(self, job: str, reasons: Mapping[str, str]) -> None:
        self.tell(job, dict(reasons))

    def tell(self, job: str, said: object) -> None:
        """Send a report; a parent that is gone needs none."""
        with self._sending, contextlib.suppress(OSError):
            self._pipe.send((job, said))


def serve(options: LedgerOptions, pipe: Pipe) -> None:
    """Run the ledger's jobs in this process until the parent says so, or is gone."""
    from connectors.ledger.process.casts import ProcessCastJob
    from connectors.ledger.process.job import ProcessLedgerJob
    from jobs.terminal.logs import log_with, set_up_logging

    for reaching_all in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent gets them, too, and stops this one
        signal.signal(reaching_all, signal.SIG_IGN)
    set_up_logging()
    log_with(site=options.site)
    reports = _Reports(pipe)
    options = options._replace(troubles=reports)
    try:
        with working([ProcessLedgerJob(options), ProcessCastJob(options)]) as jobs:
            is_ready = False
            while not (pipe.poll(LOOK_S) or all(job.done.is_set() for job in jobs)):
                raise_failures(jobs)
                if not is_ready and all(job.ready.is_set() or job.done.is_set() for job in jobs):
                    is_ready = True
                    reports.tell(_READY, "")
    except (AbcastError, OSError) as error:
        reports.tell(_ENDED, str(error))
