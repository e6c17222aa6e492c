"""The command language of tests/traces/*.txt that begin with `members`: members, and the records that they read.

members closed=true        a fresh group with these settings, and its sequencer
start a                    a process starts: an incarnation begins at the end of DATA
join a                     it asks to join
send a x                   it broadcasts x, if it may
arrive a 2 1               the records with these local seqnos reach FORWARD, in this order (default: all sent)
drop a                     the records that a has sent never arrive
resend a                   a sends its forward table again
batch                      the sequencer decides the records in FORWARD
read a                     a reads DATA to its end
catch-up a                 another sequencer takes over, retention drops all before, and a reads on
block a                    its block() returns
flush a                    it wants a quiet point;  done a: it has had it;  unwanted a: it gives it up
leave a                    it leaves
silence a 4000             so many milliseconds pass, in which all others are heard
restart a                  it is killed, and starts again with its outbox
anew a                     as it was told, it hands over, and begins its next incarnation
settings closed=false      the operator changes them
check                      whether all promises hold: everything is ordered, and the view has the live members
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.testing.memory_topics import MemoryFuture
from ordering.base.records import EPOCH, HEARTBEAT, SETTINGS, Data
from ordering.membership.settings import Settings
from ordering.participant.participant import Participant
from ordering.participant.participant_events import Event, FlushDone, FlushUnwanted
from ordering.participant.participant_table import Action
from tests.world.member_parts import MemberProducer
from tests.world.members import Process
from tests.world.membership_jobs import ADMIN, IN_MEMORY, OWN_FORWARD, MembershipJobs

TURNS = 4
"""The turns in which a job decides, and a member reads, all there is."""


def settings_of(words: tuple[str, ...]) -> bytes:
    """Return settings as an operator writes them."""
    return json.dumps({name: json.loads(value) for name, value in (word.split("=") for word in words)}).encode()


class _Wire(MemberProducer):
    """A producer whose records, heartbeats aside, wait until the script lets them arrive."""

    def send(self, topic: str, *args: Any, **options: Any) -> MemoryFuture:
        _, kind, incarnation, local_seqno = options["headers"][0][1].decode().split(" ") if options else [HEARTBEAT] * 4
        if kind == HEARTBEAT:
            return super().send(topic, *args, **options)
        sent = MemoryFuture(TopicPartition(topic, 0))
        record = options["key"], options["value"], options["headers"]
        assert isinstance(self._process, ScriptedProcess)
        self._process.wire.append((int(incarnation), int(local_seqno), kind, record, sent))
        return sent


class ScriptedProcess(Process):
    """A process in which nothing happens by itself."""

    world: ScriptedWorld

    def __init__(self, *arguments: Any) -> None:
        self.wire: list[tuple[int, int, str, Any, MemoryFuture]] = []
        super().__init__(*arguments)
        self.most_records = 1_000

    def producer(self, settings: dict[str, Any]) -> MemberProducer:
        """Return a producer."""
        return _Wire(self, settings)

    def stepped(self, before: Participant, event: Event, after: Participant, actions: tuple[Action, ...]) -> None:
        """Tell the change of phase, and the actions."""
        who, said = self.world.short(after.member), self.world.said
        if after.phase is not before.phase:
            said.append(f"{who} is {after.phase.value}")
        for action in actions:
            flush = str(action.flush_id or "")
            said.append(f"{who} is to {' '.join(filter(None, (action.do.value, action.kind, flush)))}")
        super().stepped(before, event, after, actions)

    def read(self) -> None:
        """Read DATA to its end."""
        for _ in range(TURNS):
            self._tailer.turn()
        if not self.now.known.flush_id:
            self._make_calls()
        self._see_its_end()

    def answer(self) -> None:
        """Let block() return."""
        self._make_calls()

    def resend(self) -> None:
        """Send the forward table again."""
        with self.forwarder.changed:
            self.forwarder._send_queue.send_table()

    def _block(self) -> None:
        self.calls += "B"


class ScriptedWorld(MembershipJobs):
    """A group in which nothing happens by itself."""

    neighbour = None

    def __init__(self, settings: bytes) -> None:
        super().__init__(0, {}, ())
        self.directory = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.settings = Settings(suspect_after_ms=3_000).updated(settings)
        self.with_flush = self.settings.flush
        self.is_healed = self.is_steady = True
        self.said: list[str] = []
        self.connection.create("g", "s")
        self.change_settings(self.settings)

    def begin(self) -> None:
        """Start the sequencer, which decides the settings."""
        self._take_over()
        self.decide()

    def decide(self) -> None:
        """Let the sequencer tick, and decide all there is."""
        self._look()
        for _ in range(TURNS):
            self._sequence()

    def start(self, name: str, before: ScriptedProcess | None = None) -> None:
        """Start a process."""
        number = len(self.processes)
        path = before.path if before is not None else Path(self.directory.name) / f"{number}.outbox"
        process = ScriptedProcess(self, name, path, before)
        self.processes.append(process)
        self.newest[process.address] = process
        process.begin()


class MemberScript:
    """Runs commands one by one; each returns its changes, each in a line."""

    def __init__(self) -> None:
        self.world = ScriptedWorld(b'{"closed":false}')

    def run(self, line: str) -> list[str]:
        """Run a command."""
        verb, *words = line.split()
        if verb == "members":
            self.world.close()
            self.world = ScriptedWorld(settings_of((*words,)) if words else b'{"closed":false}')
        world = self.world
        whole = patch.multiple("tests.world.kafka", SKIPPED=0.0, MOST_RECORDS=1 << 40)
        with world.shipping(), whole:
            if verb == "members":
                world.begin()
                return [world.settings.to_json().decode()]
            before = len(world.data())
            world.said.clear()
            said = getattr(self, f"_do_{verb.replace('-', '_')}")(*words) or []
            return [*map(self._describe, self._new(before)), *world.said, *said] or ["nothing"]

    def _new(self, since: int) -> list[Data]:
        return [record for record in self.world.data(since) if record.kind != EPOCH]

    def _describe(self, record: Data) -> str:
        return f"DATA {self.world.describe(record)}"

    def _process(self, name: str) -> ScriptedProcess:
        process = self.world.newest[f"s/{name}"]
        assert isinstance(process, ScriptedProcess)
        return process

    def _held(self, process: Process) -> str:
        return f"{self.world.short(process.life)} holds {' '.join(process.held) or 'nothing'}"

    def _do_start(self, name: str) -> None:
        self.world.start(name)

    def _do_join(self, name: str) -> None:
        self._process(name).join()

    def _do_send(self, name: str, text: str) -> list[str]:
        process, now = self._process(name), self._process(name).now
        if not now.takes_messages:
            return ["it may not now" if now.is_silent else "it may not any more in this life"]
        process.said[b""] = None  # it may begin with a message
        process.broadcast(text.encode())
        process.said.pop(b"")
        return [self._held(process) + ("" if now.sends_messages else ", and keeps it back")]

    def _do_arrive(self, name: str, *locals_: str) -> list[str]:
        process = self._process(name)
        chosen = process.wire
        if locals_:
            chosen = [next(each for each in process.wire if each[1] == int(local)) for local in locals_]
        process.wire = [each for each in process.wire if each not in chosen]
        told = []
        for incarnation, local_seqno, kind, record, sent in chosen:
            sent.written(self.world.kafka.topics.append(OWN_FORWARD, *record))
            told.append(f"FORWARD {name}#{incarnation}.{local_seqno} {kind}")
        return told

    def _do_drop(self, name: str) -> list[str]:
        process = self._process(name)
        lost, process.wire = process.wire, []
        return [f"lost {name}#{incarnation}.{local_seqno}" for incarnation, local_seqno, *_ in lost]

    def _do_resend(self, name: str) -> list[str]:
        self._process(name).resend()
        return [self._held(self._process(name))]

    def _do_batch(self) -> None:
        self.world.decide()

    def _do_read(self, name: str) -> list[str]:
        self._process(name).read()
        return [self._held(self._process(name))]

    def _do_catch_up(self, name: str) -> list[str]:
        self.world._sequencer_crash()
        self.world._sequence()
        self.world._purge()
        return self._do_read(name)

    def _do_block(self, name: str) -> None:
        self._process(name).answer()

    def _do_flush(self, name: str) -> None:
        self._process(name).want_flush()

    def _do_done(self, name: str) -> None:
        self._process(name).forwarder.tell(FlushDone())

    def _do_unwanted(self, name: str) -> None:
        self._process(name).forwarder.tell(FlushUnwanted())

    def _do_leave(self, name: str) -> None:
        self._process(name).leave()

    def _do_silence(self, name: str, ms: str) -> None:
        """Let all others beat each second, and the job tick."""
        for _ in range(int(ms) // 1_000):
            self.world.actors.pass_time(1_000)
            for process in self.world.alive:
                if process.name != name:
                    process.hear()
                    process.beat()
            self.world.decide()

    def _do_restart(self, name: str) -> list[str]:
        process = self._process(name)
        process.die()
        self.world.start(name, process)
        return [self._held(self._process(name))]

    def _do_anew(self, name: str) -> list[str]:
        process = self._process(name)
        process.rejoin.turn(process)
        return [self._held(process)]

    def _do_settings(self, *words: str) -> None:
        world = self.world
        world.changes += 1
        world.settings = world.settings.updated(settings_of(words))
        world.append(ADMIN, 1, world.changes, SETTINGS, settings_of(words))

    def _do_check(self) -> list[str]:
        self.world.check()
        return [f"{found.name}: {found.detail}" for found in self.world.anomalies] or ["every promise holds"]
