"""The command language of tests/traces/*.txt that begin with `members`: each member's acts on the records it reads.

members closed=true        a fresh group with these settings, and its sequencer
start a                    a process starts: an incarnation begins at the end of DATA
join a                     it asks to join
send a x                   it broadcasts x, if it may
arrive a 2 1               the records with these local seqnos reach FORWARD, in this order (default: all sent)
drop a                     what a has sent never arrives
resend a                   a sends its forward table again
batch                      the sequencer decides the records in FORWARD
read a                     a reads DATA to its end
catch-up a                 retention has dropped records that a has not read
block a                    its block() returns
flush a                    it wants a quiet point;  done a: it has had it;  unwanted a: it gives it up
leave a                    it leaves
silence a 4000             so many milliseconds pass, in which all others are heard
restart a                  it is killed, and starts again with its outbox
anew a                     what it was told: it hands over, and begins its next incarnation
settings closed=false      the operator changes them
check                      whether all promises hold: everything is ordered, and the view has the live members
"""

from __future__ import annotations

import json
import random
from collections import Counter

from ordering.base.records import FLUSH_COMPLETED, MESSAGE, REFUSED, SETTINGS, STOP_FLUSH, VIEW, Data, Partition
from ordering.membership.flush import FlushPhase as FlushPhase
from ordering.membership.membership import MemberIncarnation
from ordering.membership.settings import Settings
from ordering.participant.forward_table import Pending, kind_of
from ordering.participant.participant import Participant
from ordering.participant.participant_events import Answered, Asked, Event, FlushDone, FlushUnwanted
from ordering.participant.participant_events import FlushWanted as Wanted
from ordering.participant.participant_table import Action, Cause, Do
from ordering.sequencer.state import SequencerState
from tests.simulator.kafka import Kafka
from tests.simulator.membership import DATA, TOPIC, Group, Process

ADMIN = MemberIncarnation("s/abcast.admin", 1)


def short(life: MemberIncarnation) -> str:
    return f"{life.address.removeprefix('s/')}#{life.incarnation}"


def settings_of(words: tuple[str, ...]) -> bytes:
    return json.dumps({name: json.loads(value) for name, value in (word.split("=") for word in words)}).encode()


def describe(record: Data) -> str:
    """A DATA record, for a reader."""
    who = short(MemberIncarnation(record.sender, record.incarnation)) if record.sender else "the sequencer"
    what = f"DATA {record.seqno} {record.kind} of {who}"
    if record.kind == VIEW:
        body = json.loads(record.payload)
        flush = f" in the flush {body['flush']}" if body["flush"] else ""
        members = " ".join(short(MemberIncarnation(*row)) for row in body["members"])
        return f"DATA {record.seqno} view {record.view}{flush}: {members or 'empty'}"
    if record.kind in (MESSAGE, SETTINGS):
        return f"{what}: {record.payload.decode()}"
    if record.kind in (REFUSED, STOP_FLUSH, FLUSH_COMPLETED) and record.payload.startswith(b"{"):
        body = json.loads(record.payload)
        return f"{what}: {body.get('reason') or body['flush']}"
    return what


class Scripted(Group):
    """A group in which nothing happens by itself."""

    def __init__(self, settings: bytes) -> None:
        self.random = random.Random(0)
        self.settings = Settings(suspect_after_ms=3_000).updated(settings)
        self.with_flush = self.settings.flush
        self.kafka = Kafka()
        self.own_partitions = 1
        self.places = [Partition(TOPIC, 0)]
        self.neighbour = None
        self.forward = [self.kafka.log(TOPIC)]
        self.data = self.kafka.log(DATA).records
        self.told, self.told_until = SequencerState("g"), 0
        self.state = None
        self.epoch = self.lives = 0
        self.processes = []
        self.problems = []
        self.healing, self.is_steady = True, False
        self.crashes: Counter[tuple[str, FlushPhase]] = Counter()
        self.wire: dict[str, list[tuple[MemberIncarnation, Pending]]] = {}
        self.said: list[str] = []
        self.changes = 1
        self._append(ADMIN, 0, 1, SETTINGS, self.settings.to_json())
        self._take_over()
        self.decide()

    def decide(self) -> None:
        assert self.state is not None
        self.state, written = self._decide(self.state)
        self.data += written

    def _send_one(self, process: Process, entry: Pending, luck: float) -> None:
        super()._send_one(process, entry, 0.0)
        self.wire.setdefault(process.address, []).append((process.life, entry))

    def _perform(self, process: Process, action: Action) -> None:
        what = " ".join(filter(None, (action.do.value, action.kind, str(action.flush_id or ""))))
        self.said.append(f"{short(process.life)} is to {what}")
        if action.do is Do.BLOCK:
            process.calls += "B"
        else:
            super()._perform(process, action)

    def _tell(self, process: Process, event: Event) -> None:
        before, where = process.participant.phase, len(self.said)
        super()._tell(process, event)
        if process.participant.phase is not before:
            self.said.insert(where, f"{short(process.life)} is {process.participant.phase.value}")


class MemberScript:
    """Runs commands one by one; each returns what it changed, a line a thing."""

    def __init__(self) -> None:
        self.group = Scripted(b'{"closed":false}')

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        if verb == "members":
            self.group = Scripted(settings_of((*words,)) if words else b'{"closed":false}')
            return [self.group.settings.to_json().decode()]
        group = self.group
        before = len(group.data)
        group.said.clear()
        said = getattr(self, f"_do_{verb.replace('-', '_')}")(*words) or []
        return [*map(describe, group.data[before:]), *group.said, *said] or ["nothing"]

    def _process(self, name: str) -> Process:
        return next(each for each in reversed(self.group.processes) if each.address == f"s/{name}")

    def _held(self, process: Process) -> str:
        held = " ".join(f"{entry.local_seqno}={kind_of(entry)}" for entry in process.table.pending())
        return f"{short(process.life)} holds {held or 'nothing'}"

    def _do_start(self, name: str) -> None:
        process = Process(0, Participant(MemberIncarnation(f"s/{name}", 0)))
        self.group.processes.append(process)
        self.group._begin(process)

    def _do_join(self, name: str) -> None:
        self.group._join(self._process(name))

    def _do_send(self, name: str, text: str) -> list[str]:
        process, now = self._process(name), self._process(name).participant
        if not now.takes_messages:
            return ["it may not now" if now.is_silent else "it may not any more in this life"]
        process.said.append(text.encode())
        entry = process.table.append(text.encode(), ())
        if not now.sends_messages:
            return [f"{self._held(process)}, and keeps it back"]
        self.group._send_one(process, entry, 1)
        return [self._held(process)]

    def _do_arrive(self, name: str, *locals_: str) -> list[str]:
        wire = self.group.wire.pop(f"s/{name}", [])
        chosen = wire
        if locals_:
            chosen = [next(each for each in wire if each[1].local_seqno == int(local)) for local in locals_]
            self.group.wire[f"s/{name}"] = [each for each in wire if each not in chosen]
        for life, entry in chosen:
            self.group._append(life, 0, entry.local_seqno, kind_of(entry), entry.payload)
        return [f"FORWARD {short(life)}.{entry.local_seqno} {kind_of(entry)}" for life, entry in chosen]

    def _do_drop(self, name: str) -> list[str]:
        return [f"lost {short(life)}.{entry.local_seqno}" for life, entry in self.group.wire.pop(f"s/{name}", [])]

    def _do_resend(self, name: str) -> list[str]:
        self.group._send(self._process(name), 1)
        return [self._held(self._process(name))]

    def _do_batch(self) -> None:
        self.group._tick()
        self.group.decide()

    def _do_read(self, name: str) -> list[str]:
        process = self._process(name)
        self.group._read(process, len(self.group.data))
        return [self._held(process)]

    def _do_catch_up(self, name: str) -> list[str]:
        process = self._process(name)
        self.group._skip(process)
        return [self._held(process)]

    def _do_block(self, name: str) -> None:
        process = self._process(name)
        process.asked, asked = [], process.asked
        for flush_id in asked:
            self.group._tell(process, Answered(flush_id))

    def _do_flush(self, name: str) -> None:
        process = self._process(name)
        self.group._tell(process, Wanted(process.table.last + 1))

    def _do_done(self, name: str) -> None:
        self.group._tell(self._process(name), FlushDone())

    def _do_unwanted(self, name: str) -> None:
        self.group._tell(self._process(name), FlushUnwanted())

    def _do_leave(self, name: str) -> None:
        process = self._process(name)
        process.has_left = True
        self.group._tell(process, Asked(Cause.LEAVE))

    def _do_silence(self, name: str, ms: str) -> None:
        """Let all others beat each second, and the job tick."""
        for _ in range(int(ms) // 1_000):
            self.group.kafka.now_ms += 1_000
            for process in self.group.processes:
                if process.is_alive and process.address != f"s/{name}" and process.participant.is_heard:
                    self.group._append(process.life, 0, 1, "heartbeat", b"")
            self.group._tick()
            self.group.decide()

    def _do_restart(self, name: str) -> list[str]:
        self.group.wire.pop(f"s/{name}", None)
        self.group._restart(self._process(name))
        return [self._held(self._process(name))]

    def _do_anew(self, name: str) -> list[str]:
        process = self._process(name)
        process.begins_anew = False
        self.group._hand_over(process)
        return [self._held(process)]

    def _do_settings(self, *words: str) -> None:
        group = self.group
        group.changes += 1
        group.settings = group.settings.updated(settings_of(words))
        group._append(ADMIN, 0, group.changes, SETTINGS, settings_of(words))

    def _do_check(self) -> list[str]:
        self.group._check()
        return self.group.problems or ["every promise holds"]
