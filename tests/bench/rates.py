"""Latency against the rate, for both engines: from `broadcast` to `deliveries` in another process."""

from __future__ import annotations

from typing import Any

from connectors.kafka.transport import VARIABLE
from tests.bench.engine import broadcast_to_delivery
from tests.bench.lab import Lab

ENGINES = ("spark", "process")
_TRANSPORT = "confluent"
"""The members'; and the process engine's. With kafka-python a sender ends before the engines do."""


def measure(lab: Lab) -> dict[str, Any]:
    """Messages a second, and the latency at that rate, of each engine."""
    lab.environment[VARIABLE] = _TRANSPORT
    try:
        return {engine: _measure(lab, engine) for engine in ENGINES}
    finally:
        del lab.environment[VARIABLE]


def _measure(lab: Lab, engine: str) -> list[dict[str, Any]]:
    plan = lab.plan
    lab.say(f"rates: {', '.join(f'{rate:,}' for rate in plan.rates)} messages/s through the {engine} engine")
    warm_up_s = plan.latency_warm_up_s if engine == "spark" else plan.latency_warm_up_s / 10
    windows = broadcast_to_delivery(lab, engine, _TRANSPORT, plan.rates, warm_up_s, plan.window_s)
    return [{"per_s": rate, **window} for rate, window in windows.items()]
