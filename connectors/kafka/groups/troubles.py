"""What the jobs of this process can't do now, for the signs of life that its sequencer gives (`abcast status`)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from ordering.base.names import Topic

SEQUENCER = "sequence"


class Troubles:
    """Of all jobs of a process, each by its name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_jobs: dict[str, Mapping[str, str]] = {}
        self._ended: dict[str, str] = {}
        self._served: dict[str, frozenset[str]] = {}

    def put(self, job: str, reasons: Mapping[str, str]) -> None:
        """The job goes on without these groups, for these reasons; what was told before is over."""
        with self._lock:
            self._of_jobs[job] = dict(reasons)

    def serve(self, job: str, groups: Collection[str]) -> None:
        """The job serves just these groups now, whatever another one of the sequencer's jobs has left out."""
        with self._lock:
            self._served[job] = frozenset(groups)

    def end(self, job: str, why: str) -> None:
        """The job has ended, and the process goes on."""
        with self._lock:
            self._ended[job] = why

    def left_out(self, topics: Collection[Topic], site: str) -> dict[str, str]:
        """Groups that the sequencer goes on without, and why: those with an EPOCH, where a sign can be given."""
        with self._lock:
            of_sequencer = [reasons for job, reasons in self._of_jobs.items() if job.startswith(SEQUENCER)]
            served = frozenset().union(*self._served.values())
        return {
            group: f"it is left out: {why}"
            for reasons in of_sequencer
            for group, why in reasons.items()
            if group not in served and Topic(group, "epoch", site) in topics
        }

    def of(self, group: str) -> str:
        """What other jobs than the sequencer do not do for the group; "" if nothing is wrong."""
        with self._lock:
            told = [f"{job} has ended: {why}" for job, why in self._ended.items() if not job.startswith(SEQUENCER)]
            told += [
                f"{job} leaves it out: {reasons[group]}"
                for job, reasons in self._of_jobs.items()
                if group in reasons and not job.startswith(SEQUENCER) and job not in self._ended
            ]
        return " ".join(told)
