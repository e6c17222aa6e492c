"""The silence of the order when a standby waits beside its sequencer, and the start of the light `abcast run`."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import time
from typing import Any

from connectors import Member
from tests.bench.lab import ABCAST, Lab, Place
from tests.bench.processes import Child, proportional_mib
from tests.bench.rates import ENGINES
from tests.bench.recovery import Observer, under_load

KILLED, SUSPENDED, HANDED_OVER = "killed", "suspended", "handed over"
_HEALTHY_S = 5.0
_SETTLED_S = 10.0
_PATIENCE_S = 60.0


def measure(lab: Lab) -> dict[str, Any]:
    """Starts of `run --engine process`; then each engine's sequencer ends under load, in each way."""
    ways = [*[KILLED] * lab.plan.kills, SUSPENDED, HANDED_OVER]
    return {
        "starts": [_start(lab) for _ in range(lab.plan.session_starts)],
        "silent_s": {engine: [{"way": way, "s": _silence(lab, engine, way)} for way in ways] for engine in ENGINES},
    }


def _start(lab: Lab) -> dict[str, float]:
    """Seconds from the start of `abcast run` to the result of a message that waits for it, and its MiB when settled.

    The memory is that of the sequencer and of its ledger; what they share counts once.
    """
    lab.say("standby: `abcast run --engine process` starts")
    with lab.place("start") as place, Member(place.group, f"{place.site}/first", connection=lab.connection) as member:
        receipt = member.broadcast(b"x" * 100)
        with Child(_command(lab, place, "run", "--data", lab.path("data")), lab.path("logs") / "run.log") as child:
            receipt.result(_PATIENCE_S)
            ordered_s = time.monotonic() - child.started_at
            time.sleep(_SETTLED_S)
            mib = proportional_mib(child)
            child.stop()
    return {"ordered_s": ordered_s, "mib": mib}


def _silence(lab: Lab, engine: str, way: str) -> float:
    """Seconds from a sequencer's end to the first delivery of the standby's; of a handover, the longest silence."""
    lab.say(f"standby: a sequencer of engine {engine} is {way}")
    with lab.place("standby") as place, contextlib.ExitStack() as cleanup:
        sequencer = cleanup.enter_context(lab.sequencer(place, lab.path("data"), engine))
        sequencer.wait_said("ready;")
        observer = cleanup.enter_context(under_load(lab, place, from_seqno=1))
        observer.newest()
        standby = cleanup.enter_context(lab.sequencer(place, lab.path("data"), "process", ["--standby"]))
        standby.wait_said("This process waits.")
        time.sleep(_HEALTHY_S)
        epoch, began = observer.newest().epoch, time.monotonic()
        if way == HANDED_OVER:
            subprocess.run(_command(lab, place, "takeover"), check=True, capture_output=True, timeout=_PATIENCE_S)
            observer.first_of(epoch)
            time.sleep(_HEALTHY_S)
            return _longest_silence(observer, began)
        if way == SUSPENDED:
            sequencer.signal(signal.SIGSTOP)
        else:
            sequencer.kill()
        return observer.first_of(epoch).at - began


def _longest_silence(observer: Observer, since: float) -> float:
    times = [since, *(seen.at for seen in observer.seen if seen.at > since)]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def _command(lab: Lab, place: Place, name: str, *options: object) -> list[str]:
    site = ("--bootstrap-servers", lab.connection.bootstrap_servers, "--site", place.site)
    engine = ("--engine", "process") if name == "run" else ()
    return [str(word) for word in (ABCAST, name, *site, *engine, *options)]
