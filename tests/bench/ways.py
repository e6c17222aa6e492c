"""Counts the ways of messages between sites that agree: how long each takes, in one-way trips, with times as given.

    python -m tests.bench.ways [--way MS] [--entry MS] [--data MS] [--rate PER_S] [--seconds S]

Three sites as they ship (`ordering.agreement.site`), in virtual time: no Kafka, no clock of the machine. A step waits
for DATA of earlier steps, reads all that has come, and writes its entry; DATA follows. All sites are equally far from
each other. `--rate` is that of each site.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections.abc import Callable
from functools import partial
from itertools import count

from ordering.agreement.log import ranges_of
from ordering.agreement.site import Site, begin
from ordering.agreement.site_state import Arrived, Heard, SiteEvent, first_state
from ordering.agreement.state import Tick
from ordering.base.formats import ADDITIONS

SITES = ("nyc", "sfo", "lax")
IDLE_MS = 50
"""The time after which a site without input takes a step."""
RESEND_AFTER_MS = 2_000


def _place(site: str) -> str:
    return f"abcast.g.forward.{site}-0"


class Cluster:
    """Three sites. `own` and `others`: the ms until each message was decided, at its own site and at the others."""

    def __init__(self, way_ms: float, entry_ms: float, data_ms: float) -> None:
        self._way_ms, self._entry_ms, self._data_ms = way_ms, entry_ms, data_ms
        self._turns, self._events = count(), list[tuple[float, int, Callable[[float], None]]]()
        self._sites = {name: self._begun(name) for name in SITES}
        self._inbox: dict[str, list[SiteEvent]] = {
            name: [Heard(other, 1, 1) for other in SITES if other != name] for name in SITES
        }
        self._free_at = dict.fromkeys(SITES, 0.0)
        self._data_at = dict.fromkeys(SITES, 0.0)
        self._is_due = dict.fromkeys(SITES, False)
        self.sent: dict[str, list[float]] = {name: [] for name in SITES}
        self.own, self.others, self.entries = list[float](), list[float](), 0

    @staticmethod
    def _begun(name: str) -> Site:
        state = first_state("g", name, SITES, resend_after_ms=RESEND_AFTER_MS)
        return begin(state, 1, of_format=ADDITIONS.number)

    def _at(self, at_ms: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._turns), act))

    def run(self, rate: float, seconds: float, settling_s: float = 4.0) -> None:
        """Send at random times, at this mean rate at each site; then settle."""
        dice = random.Random(1)
        for name in SITES:
            at_ms = dice.expovariate(rate) * 1000
            while at_ms < seconds * 1000:
                self._at(at_ms, partial(self._send, name))
                at_ms += dice.expovariate(rate) * 1000
            for number in range(int((seconds + settling_s) * 1000 / IDLE_MS)):
                self._at(number * IDLE_MS, partial(self._wake, name))
        while self._events:
            at_ms, _, act = heapq.heappop(self._events)
            act(at_ms)

    def _send(self, name: str, now_ms: float) -> None:
        self.sent[name].append(now_ms)
        arrived = Arrived(_place(name), len(self.sent[name]), len(self.sent[name]))
        self._arrive(name, arrived, now_ms)
        self._copy(name, arrived, now_ms)

    def _copy(self, name: str, event: SiteEvent, now_ms: float) -> None:
        for other in SITES:
            if other != name:
                self._at(now_ms + self._way_ms, partial(self._arrive, other, event))

    def _arrive(self, name: str, event: SiteEvent, now_ms: float) -> None:
        self._inbox[name].append(event)
        self._wake(name, now_ms)

    def _wake(self, name: str, now_ms: float) -> None:
        if not self._is_due[name]:
            self._is_due[name] = True
            self._at(max(now_ms, self._free_at[name], self._data_at[name]), partial(self._step, name))

    def _step(self, name: str, now_ms: float) -> None:
        site, read = self._sites[name], self._inbox[name]
        self._inbox[name], self._is_due[name] = [], False
        for event in (*read, Tick(int(now_ms))):
            site.take(event)
        entry = site.end_step()
        if entry is None:
            return
        self.entries += 1
        self._free_at[name] = there_ms = now_ms + self._entry_ms
        self._copy(name, Heard(name, 1 + entry.number, 1, entry), there_ms)
        while (run := site.due()) is not None:
            self._data_at[name] = there_ms + self._data_ms
            site.end_run(site.sequenced.state, is_refused=False)
            for part in ranges_of(run.run):
                sender = next(each for each in SITES if part.place == _place(each))
                took = [there_ms - self.sent[sender][offset] for offset in range(part.first, part.end)]
                (self.own if sender == name else self.others).extend(took)


def main() -> None:
    """Print the ways at the own site and at others, as median and 99th percentile, and the entries a message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"way": 20.0, "entry": 4.0, "data": 0.0, "rate": 100.0, "seconds": 4.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    args = parser.parse_args()
    cluster = Cluster(args.way, args.entry, args.data)
    cluster.run(args.rate, args.seconds)
    for name, found_ms in {"own site": cluster.own, "other sites": cluster.others}.items():
        p50, p99 = statistics.median(found_ms), statistics.quantiles(found_ms, n=100)[-1]
        print(f"{name}: {p50 / args.way:.2f} ways ({p50:.1f} ms), p99 {p99 / args.way:.2f} ({p99:.1f} ms)")
    print(f"{cluster.entries / sum(map(len, cluster.sent.values())):.2f} entries a message")


if __name__ == "__main__":
    main()
