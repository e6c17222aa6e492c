"""Time without deliveries after a kill -9 of the sequencer, and after the loss of its checkpoint."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from connectors import Member
from connectors.kafka.log.data_log import DataLog
from connectors.spark.running_query import STOP_S
from ordering.base.errors import NotOrderedInTime
from tests.bench.backlog import fill
from tests.bench.lab import Lab, Place
from tests.bench.load import PAYLOAD_BYTES, Pace
from tests.bench.plan import Case
from tests.bench.processes import Child

_PATIENCE_S = 180.0
_HEALTHY_S = 5.0
_SETTLE_S = 2.0
_SESSION = "from connectors.spark.session import build_session; build_session('bare'); print('session is up')"


def measure(lab: Lab) -> dict[str, Any]:
    """A bare Spark start, kills under load, and lost checkpoints with more and more history."""
    return {
        "load_records_per_s": lab.plan.latency_rate,
        "spark_start_s": _session_start(lab),
        "kills": kills(lab),
        "lost_checkpoints": [_lost_checkpoint(lab, history) for history in lab.plan.histories],
    }


def _session_start(lab: Lab) -> float:
    """Seconds from the start of a process to its Spark session, the median of some."""
    taken = []
    for turn in range(lab.plan.session_starts):
        lab.say(f"recovery: a bare Spark session, start {turn + 1}/{lab.plan.session_starts}")
        with Child([sys.executable, "-c", _SESSION], lab.path("logs") / "session.log") as child:
            taken.append(child.wait_said("session is up") - child.started_at)
    return median(taken)


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    seqno: int
    epoch: int


class Observer:
    """A member that delivers all the time, in a thread, and notes when."""

    def __init__(self, lab: Lab, place: Place, from_seqno: int) -> None:
        self.seen: list[_Seen] = []
        self.problem: BaseException | None = None
        self._member = Member(place.group, f"{place.site}/observer", connection=lab.connection)
        self._deliveries = self._member.deliveries(from_seqno=from_seqno)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for delivery in self._deliveries:
                self.seen.append(_Seen(time.monotonic(), delivery.seqno, delivery.epoch))
        except BaseException as error:  # noqa: BLE001 - raised by first_of
            self.problem = error

    def newest(self) -> _Seen:
        """Return the last delivery so far; there must be one soon."""
        return self.first_of(0, newest=True)

    def first_of(self, epoch: int, *, newest: bool = False) -> _Seen:
        """Wait for the first delivery that an epoch above `epoch` decided (`newest`: take the last of all)."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (self.seen and self.seen[-1].epoch > epoch):
            if self.problem is not None:
                raise self.problem
            if time.monotonic() > deadline:
                raise RuntimeError(f"no delivery of an epoch above {epoch} within {_PATIENCE_S:g} s")
            time.sleep(0.005)
        return self.seen[-1] if newest else next(one for one in list(self.seen) if one.epoch > epoch)

    def close(self) -> None:
        """End its member and its thread."""
        self._member.close()
        self._thread.join(10)


class _Supervisor:
    """Starts `abcast sequence` again the moment it ends, as an init system would. Close it."""

    def __init__(self, lab: Lab, place: Place, engine: str) -> None:
        self.children: list[Child] = []
        self._lab, self._place, self._engine = lab, place, engine
        self._data = lab.path("data")
        self._stop = threading.Event()
        self._start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        self.children.append(self._lab.sequencer(self._place, self._data, self._engine))

    def _run(self) -> None:
        while not self._stop.is_set():
            self.children[-1].popen.wait()
            if not self._stop.is_set():
                self._start()

    @property
    def child(self) -> Child:
        """Return the running child."""
        return self.children[-1]

    def kill(self) -> tuple[float, Child]:
        """Send kill -9 to all its processes; return the moment, and the child that was started in its place."""
        count = len(self.children)
        killed_at = self.child.kill()
        while len(self.children) == count:
            time.sleep(0.001)
        return killed_at, self.child

    def close(self) -> None:
        self._stop.set()
        for child in list(self.children):
            child.kill()
        self._thread.join(STOP_S)
        shutil.rmtree(self._data, ignore_errors=True)


@contextlib.contextmanager
def under_load(lab: Lab, place: Place, from_seqno: int) -> Iterator[Observer]:
    """A member broadcasts at the plan's rate, another delivers."""
    payload = b"x" * PAYLOAD_BYTES
    with contextlib.ExitStack() as cleanup:
        # As many may wait as are sent while nobody sequences.
        sender = Member(place.group, f"{place.site}/load", connection=lab.connection, max_pending_records=1_000_000)
        cleanup.callback(_close_sender, sender)
        pace = Pace(lambda: sender.broadcast(payload), lab.plan.latency_rate)
        cleanup.callback(pace.halt)
        observer = Observer(lab, place, from_seqno)
        cleanup.callback(observer.close)
        yield observer


def _close_sender(sender: Member) -> None:
    with contextlib.suppress(NotOrderedInTime):
        sender.close(timeout=0)


def kills(lab: Lab, engine: str = "spark") -> dict[str, Any]:
    """kill -9 under load, again and again: seconds to the next delivery."""
    rows = []
    with lab.place("kill") as place, contextlib.ExitStack() as cleanup:
        supervisor = _Supervisor(lab, place, engine)
        cleanup.callback(supervisor.close)
        observer = cleanup.enter_context(under_load(lab, place, from_seqno=1))
        lab.say(f"recovery: starting `abcast sequence --engine {engine}` under a supervisor")
        supervisor.child.wait_said("ready;")
        for turn in range(lab.plan.kills):
            observer.newest()
            time.sleep(_HEALTHY_S)
            epoch = observer.newest().epoch
            lab.say(f"recovery: kill -9 {turn + 1}/{lab.plan.kills} at {lab.plan.latency_rate:,} records/s")
            killed_at, child = supervisor.kill()
            rows.append({**_timeline(child, observer, epoch, killed_at), "history": observer.newest().seqno})
    taken = [row["next_delivery_s"] for row in rows]
    return {"median_s": median(taken), "max_s": max(taken), "rounds": rows}


def _timeline(child: Child, observer: Observer, epoch: int, since: float) -> dict[str, Any]:
    """Seconds since `since`: the process started, the epoch began (so Spark was up), it was ready, it delivered."""
    began = child.wait_said("begins after seqno")
    ready = child.wait_said("ready;")
    first = observer.first_of(epoch)
    return {
        "started_s": child.started_at - since,
        "epoch_began_s": began - since,
        "ready_s": ready - since,
        "next_delivery_s": first.at - since,
    }


def _lost_checkpoint(lab: Lab, history: int) -> dict[str, Any]:
    """Start a sequencer with nothing but Kafka."""
    lab.say(f"recovery: {history:,} messages of history, then the checkpoint is lost")
    with lab.place("history") as place, contextlib.ExitStack() as cleanup:
        fill(lab, place, history, Case(100, 16, 1))
        data = lab.path("data")
        with lab.sequencer(place, data) as child, DataLog(lab.connection, place.group, place.site) as log:
            child.wait_said("ready;")
            deadline = time.monotonic() + _PATIENCE_S
            while log.end() < history and time.monotonic() < deadline:
                time.sleep(0.2)
            time.sleep(_HEALTHY_S)
            child.kill()
            state = log.state()
        shutil.rmtree(data, ignore_errors=True)
        # The members are there before, and know where DATA ends: only the sequencer has to find out.
        observer = cleanup.enter_context(under_load(lab, place, from_seqno=state.seqno + 1))
        time.sleep(_SETTLE_S)
        with lab.sequencer(place, data) as child:
            row = _timeline(child, observer, state.epoch, child.started_at)
        shutil.rmtree(data, ignore_errors=True)
    return {"history": state.seqno, **row}
