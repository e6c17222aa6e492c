"""`python -m tests.bench.soak`: a group under steady load for long, and the sizes of its parts over time.

200 members in four processes broadcast 2,000 messages a second; `abcast run` orders them, writes the ledger, and takes
care of tables and topics each minute. Every 10 s it samples the records that FORWARD holds, bytes on Kafka, files in
Delta, and the memory of each process. It fails if one of them keeps growing that should not (`tests.bench.steadiness`),
if the order does not keep up, if one of the standbys that wait beside it takes over, or if `abcast check` finds an
anomaly.

Growth on purpose is given for each message: DATA and the ledger are the history. Delta deletes merged files after two
days, so only the files that the newest version names count here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from kafka.structs import TopicPartition

from connectors.kafka.connection.backlog import partition_bytes
from connectors.kafka.log.data_log import DataLog
from tests.bench import machine
from tests.bench.lab import ABCAST, Lab, Place
from tests.bench.plan import Plan
from tests.bench.processes import Child, resident_mib
from tests.bench.steadiness import trends

DEFAULT_OUT = Path("abcast-data") / "soak.json"
PROCESSES = 4
PARTITIONS = 4
SAMPLE_S = 10.0
EXIT_INTERRUPTED = 130
MIN_KEPT = 0.95
"""Least share of the load that must be ordered: below it, the order does not keep up."""
JUDGED = (
    *("jvm_mib", "worker_mib", "driver_mib", "broker_mib", "members_mib"),
    *("forward_records", "delta_files"),
)


class Soak:
    """A run. `sample` it from time to time, `verdict` at the end."""

    def __init__(
        self,
        lab: Lab,
        place: Place,
        minutes: float,
        per_s: float,
        members: int,
        maintain_every: str = "60s",
        standbys: int = 0,
    ) -> None:
        self.lab = lab
        self.place = place
        self.minutes, self.per_s, self.members = minutes, per_s, members
        self.maintain_every, self.standbys = maintain_every, standbys
        self.data = lab.path("data")
        self.samples: list[dict[str, float]] = []

    def run(self, keep: Callable[[Any], object]) -> dict[str, Any]:
        """Run to the end; return the samples and the verdict. Pass the samples to `keep` after each."""
        with self._job() as job, contextlib.ExitStack() as closing:
            standbys = [closing.enter_context(self._standby()) for _ in range(self.standbys)]
            children = [self._senders(number) for number in range(PROCESSES)]
            for child in children:
                closing.callback(child.kill)
            for child in children:
                child.wait_said("in", timeout=600)
            for child in children:
                child.begin()
            self.lab.say(f"soak: {self.members} members, {self.per_s:g} messages/s, {self.minutes:g} minutes")
            began = time.monotonic()
            while (at_s := time.monotonic() - began) < self.minutes * 60:
                self.samples.append({"at_s": round(at_s, 1), **self._sample(job, children)})
                keep({"samples": self.samples})
                if ended := [each for each in (job, *standbys, *children) if each.popen.poll() is not None]:
                    raise RuntimeError("".join(f"{each.log.name} ended early:\n{each.tail()}" for each in ended))
                time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began - at_s)))
            for child in children:
                child.end()
        return {"samples": self.samples, "verdict": self._verdict()}

    @contextlib.contextmanager
    def _job(self) -> Iterator[Child]:
        command = [ABCAST, "run", "--bootstrap-servers", self.lab.connection.bootstrap_servers]
        command += ["--site", self.place.site, "--data", self.data, "--maintain-every", self.maintain_every]
        with Child(command, self.lab.path("logs") / "run.log", self.lab.environment) as job:
            job.wait_said("ready")
            yield job
            job.stop()

    def _standby(self) -> Child:
        standby = self.lab.sequencer(self.place, self.lab.path("standby"), "process", ["--standby"])
        standby.wait_said("This process waits.")
        return standby

    def _senders(self, number: int) -> Senders:
        count = self.members // PROCESSES + (number < self.members % PROCESSES)
        options = [self.lab.connection.bootstrap_servers, self.place.group, self.place.site, f"p{number}", count]
        command = [sys.executable, "-m", "tests.bench.soak_members", *options, self.per_s * count / self.members]
        return Senders(command, self.lab.path("logs") / f"members-{number}.log", self.lab.environment_of_children({}))

    def _sample(self, job: Child, children: list[Senders]) -> dict[str, float]:
        memory = {f"{part}_mib": round(mib, 1) for part, mib in resident_mib(job.pid).items()}
        forward = [TopicPartition(self.place.forward, number) for number in range(PARTITIONS)]
        data = TopicPartition(self.place.data, 0)
        with contextlib.closing(self.lab.connection.consumer()) as consumer, self.lab.connection.admin() as admin:
            ends, beginnings = consumer.end_offsets([*forward, data]), consumer.beginning_offsets(forward)
            sizes = partition_bytes(admin, dict.fromkeys([*forward, data], 0))
        return {
            "ordered": ends[data],
            "forward_records": sum(ends[each] - beginnings[each] for each in forward),
            "forward_mib": _mib(sum(sizes.get(each, 0) for each in forward)),
            "data_mib": _mib(sizes.get(data, 0)),
            **self._ledger(),
            **memory,
            "broker_mib": round(resident_mib(self.lab.pid).get("broker", 0.0), 1),
            "members_mib": round(sum(resident_mib(child.pid).get("driver", 0.0) for child in children), 1),
        }

    def _ledger(self) -> dict[str, float]:
        path = self.data / "ledger"
        if not (path / "_delta_log").exists():
            return {"delta_files": 0, "delta_mib": 0.0, "disk_files": 0}
        table = DeltaTable(str(path))
        sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist()
        on_disk = sum(1 for each in path.rglob("*") if each.is_file())
        return {"delta_files": len(sizes), "delta_mib": _mib(sum(sizes)), "disk_files": on_disk}

    def _verdict(self) -> dict[str, Any]:
        at_s = [each["at_s"] for each in self.samples]
        found = trends(at_s, {name: [each.get(name, 0.0) for each in self.samples] for name in JUDGED})
        first, last = self.samples[0], self.samples[-1]
        ordered, seconds = last["ordered"] - first["ordered"], last["at_s"] - first["at_s"]
        where = ["--group", self.place.group, "--site", self.place.site, "--data", str(self.data)]
        where += ["--bootstrap-servers", self.lab.connection.bootstrap_servers]
        check = subprocess.run([str(ABCAST), "check", *where], capture_output=True, text=True, check=False)
        failures = [
            f"{name} grows: {each.gain:,.1f} in the second half, over {each.limit:,.1f} (its mean is {each.mean:,.1f})"
            for name, each in found.items()
            if not each.is_steady
        ]
        if ordered < MIN_KEPT * self.per_s * seconds:
            failures.append(f"{ordered / seconds:,.0f} messages/s were ordered, of {self.per_s:g}")
        with DataLog(self.lab.connection, self.place.group, self.place.site) as log:
            takeovers = len(log.epochs.read().claims) - 1
        if takeovers:
            failures.append(f"{takeovers} takeovers, though the sequencer was alive")
        if check.returncode:
            failures.append(f"abcast check: {check.stdout[-300:]}{check.stderr[-300:]}")
        return {
            "ordered_per_s": ordered / seconds,
            "data_bytes_a_message": (last["data_mib"] - first["data_mib"]) * 1024 * 1024 / max(1, ordered),
            "ledger_bytes_a_message": (last["delta_mib"] - first["delta_mib"]) * 1024 * 1024 / max(1, ordered),
            "trends": {name: each._asdict() for name, each in found.items()},
            "failures": failures,
        }


class Senders(Child):
    """A process of members, which begins and ends on its standard input."""

    STDIN = subprocess.PIPE

    def begin(self) -> None:
        """Let the members send."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(b"go\n")
        self.popen.stdin.flush()

    def end(self) -> None:
        """Let the members stop, and wait for the process."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(60)


def _mib(size: float) -> float:
    return round(size / 1024 / 1024, 3)


def main() -> int:
    """Run a command line; returns the exit code: 1 if something keeps growing."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description="A group under load for long.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--per-s", type=float, default=2000.0, help="messages a second, of all members together")
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--maintain-every", default="60s", help="what `abcast run` is given (60s)")
    parser.add_argument("--standbys", type=int, default=0, help="processes that wait beside it, to take over (0)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    options = parser.parse_args()
    out, began = options.out.absolute(), time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {what}", flush=True)

    size = {"minutes": options.minutes, "per_s": options.per_s, "members": options.members}
    command = f"--minutes {options.minutes:g} --per-s {options.per_s:g} --members {options.members}"
    command += f" --maintain-every {options.maintain_every} --standbys {options.standbys}"
    facts = {"command": command, "machine": machine.facts(), **size}

    def keep(result: Mapping[str, Any]) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**facts, **result}, indent=1) + "\n", encoding="utf-8")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))  # with all that it has started
    with Lab(Plan(1), say) as lab, lab.place("soak", PARTITIONS) as place:
        soak = Soak(
            *(lab, place, options.minutes, options.per_s, options.members),
            *(options.maintain_every, options.standbys),
        )
        result = soak.run(keep)
    keep(result)
    for failure in result["verdict"]["failures"]:
        say(failure)
    say(f"{result['verdict']['ordered_per_s']:,.0f} messages/s; JSON: {out}")
    return bool(result["verdict"]["failures"])


if __name__ == "__main__":
    sys.exit(main())
