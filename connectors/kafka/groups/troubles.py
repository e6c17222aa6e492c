"""Collect what the jobs of this process can't do now, for the sequencer's signs of life (`abcast status`).

Also the signs themselves, so that the process can tell from memory whether its sequencer works (`/readyz`), and the
sequencer's states, so that its port need not compute them from DATA.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ordering.base.names import Topic
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState

SEQUENCER = "sequence"

Value = TypeVar("Value", bound=Collection[str])


class Troubles:
    """The troubles of a process's jobs, by the job's name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_jobs: dict[str, dict[str, str]] = {}
        self._ended: dict[str, str] = {}
        self._served: dict[str, frozenset[str]] = {}
        self._signed_at: dict[str, float] = {}
        self.pipelines: Callable[[], Mapping[str, Pipeline]] = dict
        """Returns the pipelines of this process's sequencer, by group; none while it has not begun, or has ended."""

    def put(self, job: str, reasons: Mapping[str, str]) -> None:
        """Set the groups that a job goes on without, and the reasons; replaces the earlier ones."""
        with self._lock:
            _set(self._of_jobs, job, dict(reasons))

    def serve(self, job: str, groups: Collection[str]) -> None:
        """Set the groups that a job serves now, even if another of the sequencer's jobs has suspended them."""
        with self._lock:
            _set(self._served, job, frozenset(groups))

    def end(self, job: str, why: str) -> None:
        """Note why a job has ended while the process goes on: `of` then says so, in place of the groups it left out.

        Nothing is noted of a sequencer's job, which is tried again, or was the last one.
        """
        if not job.startswith(SEQUENCER):
            with self._lock:
                self._ended[job] = why

    def begin(self, job: str) -> None:
        """Note that a job that had ended works again."""
        with self._lock:
            self._ended.pop(job, None)

    def ended(self) -> dict[str, str]:
        """Return the jobs that have ended while the process goes on, and why."""
        with self._lock:
            return dict(self._ended)

    def suspended(self, topics: Collection[Topic], site: str) -> dict[str, str]:
        """Return the groups that the sequencer goes on without, and why, if they have an EPOCH, which a sign needs."""
        return {group: why for group, why in self.not_served().items() if Topic(group, "epoch", site) in topics}

    def not_served(self) -> dict[str, str]:
        """Return the groups that the sequencer goes on without, and why."""
        with self._lock:
            of_sequencer = [reasons for job, reasons in self._of_jobs.items() if job.startswith(SEQUENCER)]
            served = frozenset().union(*self._served.values())
        return {
            group: f"not served: {why}"
            for reasons in of_sequencer
            for group, why in reasons.items()
            if group not in served
        }

    def expect_signs(self, groups: Collection[str]) -> None:
        """Set the groups that the sequencer serves now. A new one counts as signed for at this moment."""
        now = time.monotonic()
        with self._lock:
            self._signed_at = {group: self._signed_at.get(group, now) for group in groups}

    def signed(self, groups: Collection[str]) -> None:
        """Note that the sequencer has given a sign for these groups: of life, or that Kafka is silent about them."""
        with self._lock:
            self._signed_at |= dict.fromkeys(self._signed_at.keys() & set(groups), time.monotonic())

    def unsigned_s(self) -> dict[str, float]:
        """Return the seconds since the last sign for each group that the sequencer of this process serves."""
        now = time.monotonic()
        with self._lock:
            return {group: now - at for group, at in sorted(self._signed_at.items())}

    def decided(self, group: str) -> SequencerState | None:
        """Return what this process's sequencer has decided for the group, as far as it is known; None otherwise.

        DATA may lack the last of it, and another sequencer may have taken the group over since.
        """
        pipeline = self.pipelines().get(group)
        return None if pipeline is None else pipeline.state

    def of(self, group: str) -> str:
        """Return what jobs other than the sequencer don't do for the group; "" if nothing is wrong."""
        with self._lock:
            sentences = [f"{job} has ended: {why}" for job, why in self._ended.items()]
            sentences += [
                f"{job} does not serve it: {reasons[group]}"
                for job, reasons in self._of_jobs.items()
                if group in reasons and not job.startswith(SEQUENCER) and job not in self._ended
            ]
        return " ".join(sentences)


def _set(of_jobs: dict[str, Value], job: str, value: Value) -> None:
    """Set a job's value. An empty one is dropped: a sequencer on Spark opens ever new jobs."""
    of_jobs.pop(job, None)
    if value:
        of_jobs[job] = value
