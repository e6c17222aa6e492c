"""`python -m tests.bench`: run the chosen measurements, print the tables, write the JSON.

The JSON is written after every section, so that a run that was stopped keeps what it has measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ordering.base.errors import AbcastError
from tests.bench import machine, report
from tests.bench.history import TOLERANCE, load, worse
from tests.bench.lab import Lab
from tests.bench.plan import DEFAULT_RECORDS, QUICK_RECORDS, SECTIONS, Plan

DEFAULT_OUT = Path("abcast-data") / "bench.json"
_EXIT_FAILED, _EXIT_INTERRUPTED = 1, 130
_ON_THE_SHARED_SESSION = {"throughput", "peers", "state", "growth", "latency", "packs", "views", "relay"}


def main() -> int:
    """Run a command line; returns the exit code."""
    options = _parser().parse_args()
    out = options.out.absolute()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not Path("/proc/self/stat").exists():
        console.print("The benchmark reads CPU time and memory from /proc: run it on Linux.")
        return _EXIT_FAILED
    plan = Plan.of(options.records, quick=options.quick, rounds=options.rounds)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for noisy in ("kafka", "py4j"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _interrupt)

    started = time.monotonic()

    def say(what: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        console.print(f"● {minutes:02}:{seconds:02} {what}", highlight=False, markup=False)

    results: dict[str, Any] = {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(sys.argv[1:]),
        "plan": asdict(plan),
        "machine": machine.facts(),
        "load_average": {},
        "seconds": {},
        "results": {},
    }
    report.show_machine(console, results["machine"])
    code = 0
    try:
        with Lab(plan, say) as lab:
            end = started + 60 * options.minutes if options.minutes else None
            code = _measure(lab, options.only, results, out, end)
            say("stopping Spark and the broker")
    except KeyboardInterrupt:
        say("interrupted; everything is stopped and removed")
        code = _EXIT_INTERRUPTED
    except AbcastError as error:
        console.print(f"bench: {error}", style="red", markup=False)
        code = _EXIT_FAILED
    for section, result in results["results"].items():
        report.show(console, section, result)
    if results["results"]:
        took = ", ".join(f"{section} {seconds:,} s" for section, seconds in results["seconds"].items())
        console.print(f"\nIt took: {took}\nJSON: {out}", highlight=False)
    if options.gate and (found := worse(load(), results["results"])):
        console.print("\n".join(["Worse than in docs/performance-history.json:", *found]), style="red", highlight=False)
        code = code or _EXIT_FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description="Measure abcast beside what it is built on.")
    parser.add_argument(
        "--only",
        type=_sections,
        default=list(SECTIONS),
        metavar="SECTION,…",
        help=f"in this order, of {', '.join(SECTIONS)} (default: all)",
    )
    parser.add_argument(
        "--records",
        type=_positive,
        help=f"per throughput case (default {DEFAULT_RECORDS:,}, quick {QUICK_RECORDS:,}); all else scales with it",
    )
    parser.add_argument("--rounds", type=_positive, default=1, help="of throughput and latency, averaged (default 1)")
    parser.add_argument("--minutes", type=_positive, help="begin no further section after so many (default: no limit)")
    parser.add_argument("--gate", action="store_true", help=f"fail if a ratio got worse by more than {TOLERANCE:.0%}%")
    parser.add_argument("--quick", action="store_true", help="fewer records, shorter, one round: is it all in order?")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"the JSON file (default {DEFAULT_OUT})")
    return parser


def _sections(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := set(names) - set(SECTIONS):
        raise argparse.ArgumentTypeError(f"no such section: {', '.join(sorted(unknown))}")
    return names


def _positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("give a number from 1")
    return number


def _measure(lab: Lab, chosen: list[str], results: dict[str, Any], out: Path, end: float | None) -> int:
    """Measure section after section; one that fails is noted and the next is tried. None begins after `end`, on the
    monotonic clock.
    """
    # Spark takes a second to import, and a wrong option should be said before that.
    from tests.bench import (
        agreeing,
        casts,
        engine,
        groups,
        growth,
        latency,
        members,
        memory,
        packs,
        peers,
        rates,
        recovery,
        relay,
        standby,
        throughput,
        views,
    )

    sections: dict[str, Callable[[Lab], Any]] = {
        "throughput": throughput.measure,
        "peers": peers.measure,
        "state": throughput.measure_state,
        "growth": growth.measure,
        "latency": latency.measure,
        "memory": memory.measure,
        "engine": engine.measure,
        "rates": rates.measure,
        "groups": groups.measure,
        "casts": casts.measure,
        "members": members.measure,
        "packs": packs.measure,
        "views": views.measure,
        "relay": relay.measure,
        "agreeing": agreeing.measure,
        "recovery": recovery.measure,
        "standby": standby.measure,
    }
    code = 0
    if _ON_THE_SHARED_SESSION.intersection(chosen):
        try:
            throughput.warm_up(lab)
        except Exception:  # noqa: BLE001 - some sections need no Spark; the others will name the fault
            traceback.print_exc()
            code = _EXIT_FAILED
    for section in chosen:
        results["load_average"][section], began = machine.load_average(), time.monotonic()
        try:
            if end is not None and began > end:
                raise TimeoutError("not begun: --minutes were over")
            result = sections[section](lab)
        except Exception as error:  # noqa: BLE001 - half an hour of other figures must not be lost with it
            traceback.print_exc()
            result, code = {"failed": f"{type(error).__name__}: {error}"}, _EXIT_FAILED
        results["results"][section], results["seconds"][section] = result, round(time.monotonic() - began)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return code


def _interrupt(_number: int, _frame: object) -> None:
    """End as on Ctrl-C. Spark has a handler of its own for it, which cancels its work."""
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
