"""Views: from JOIN to the installed view, without and with flush; and the cost of many members' heartbeats."""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

import pandas as pd

from connectors.kafka.codec import codec
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from connectors.kafka.topics.settings import change_settings
from connectors.sequencer.query import decide_chunk
from connectors.sequencer.stored_state import StoredState, load, store
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.names import Topic
from ordering.base.records import FLUSH_OK, HEARTBEAT, JOIN, LEAVE, START_FLUSH, VIEW
from ordering.membership.membership import MemberIncarnation, Membership
from ordering.sequencer.sequencer import end_batch
from ordering.sequencer.state import SequencerState
from tests.bench.lab import Lab, Place
from tests.bench.latency import sequencing

MEMBERS = (10, 100)
HEARTBEATING = 1_000
_PATIENCE_S = 60.0


def measure(lab: Lab) -> dict[str, Any]:
    """Joins into groups of several sizes on the real job, and heartbeats on the stateful function alone."""
    joins = []
    for members in MEMBERS:
        for flush in (False, True):
            lab.say(f"views: joins into a group of {members}, {'with' if flush else 'without'} flush")
            with lab.place("views") as place, sequencing(lab, place):
                times = Crowd(lab, place, members, flush=flush).joins(3 if lab.plan.kills == 1 else 10)
            joins.append({"members": members, "flush": flush, "ms": [1000 * took for took in times]})
    lab.say(f"views: the heartbeats of {HEARTBEATING:,} members")
    return {"joins": joins, "heartbeats": heartbeats(20)}


class Crowd:
    """Members without a process of their own: one producer, and one cursor that answers each flush for all."""

    def __init__(self, lab: Lab, place: Place, size: int, *, flush: bool) -> None:
        self.connection = lab.connection
        self.topic = str(Topic(place.group, "forward", place.site))
        self.site = place.site
        self.producer = lab.connection.producer()
        with DataLog(lab.connection, place.group, place.site) as log:
            start = log.after(log.state().seqno)
        partition = log.partition
        self.cursor = DataCursor(lab.connection.consumer(), partition, start)
        self.local_seqnos: dict[str, int] = {}
        self.members: list[str] = []
        if flush:
            change_settings(lab.connection, place.group, place.site, flush=True)
        change_settings(lab.connection, place.group, place.site, suspect_after_ms=10**9)
        for number in range(size):
            self.send(f"{place.site}/m{number}", JOIN)
        self.wait_for(lambda view: len(view) == size)

    def send(self, address: str, kind: str, payload: bytes = b"") -> None:
        local_seqno = self.local_seqnos[address] = self.local_seqnos.get(address, 0) + 1
        headers = codec.forward_headers(1, local_seqno, kind=kind)
        self.producer.send(self.topic, key=address.encode(), value=payload, headers=headers)

    def wait_for(self, wanted: Any) -> None:
        """Answer records until there is a view whose members are `wanted`."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for record in self.cursor.poll(0.02):
                if self._take(record) and wanted(self.members):
                    return
        raise TimeoutError("no view")

    def _take(self, record: Effective) -> bool:
        if record.kind == START_FLUSH:
            for address in self.members:
                self.send(address, FLUSH_OK, b"%d" % record.seqno)
        if record.kind != VIEW:
            return False
        self.members = [address for address, _ in json.loads(record.value or b"")["members"]]
        return True

    def joins(self, count: int) -> list[float]:
        """Return the seconds from JOIN to the view, one join after the other."""
        times = []
        for number in range(count):
            joiner = f"{self.site}/joiner{number}"
            started = time.monotonic()
            self.send(joiner, JOIN)
            self.wait_for(lambda view, joiner=joiner: joiner in view)
            times.append(time.monotonic() - started)
            self.send(joiner, LEAVE)
            self.wait_for(lambda view, joiner=joiner: joiner not in view)
        return times


def heartbeats(rounds: int) -> dict[str, Any]:
    """Milliseconds that a second's heartbeats take in the stateful function, its state read and written included."""
    members = tuple(MemberIncarnation(f"s/m{number}", 1) for number in range(HEARTBEATING))
    stored = StoredState(SequencerState("g", epoch=1, membership=Membership(members=members)).to_bytes(), b"")
    times = []
    for number in range(rounds):
        chunk = pd.DataFrame(
            {
                "topic": "abcast.g.forward.s",
                "partition": 0,
                "offset": range(number * HEARTBEATING, (number + 1) * HEARTBEATING),
                "sender": [member.address for member in members],
                "incarnation": 1,
                "local_seqno": 1,
                "kind": FORWARD_KINDS.index(HEARTBEAT),
                "forwarded_at_ms": 1000 * number,
                "plain": True,
                "key": None,
                "value": b"",
                "packed_headers": None,
            }
        )
        started = time.perf_counter()
        state, runs = decide_chunk(load("g", stored), chunk)
        state, closing = end_batch(state)
        stored = store(state, stored)
        times.append(1000 * (time.perf_counter() - started))
        assert not runs
        assert not closing
    return {"members": HEARTBEATING, "ms_per_second": median(times), "state_bytes": sum(map(len, stored))}
