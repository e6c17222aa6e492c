"""The output of both demos: lines about events, digests of the order, and the verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from connectors import Delivery
    from ordering.checker.anomalies import Anomaly


def say(text: str) -> None:
    """Print a line about an event. On a terminal, progress bars are drawn below it."""
    from rich import get_console

    get_console().print(f"● {text}", markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_order(deliveries: Mapping[str, Sequence[Delivery]]) -> None:
    """Print a digest of each observer's deliveries, which is equal only for the same order."""
    for observer, delivered in deliveries.items():
        order = hashlib.sha256()
        for d in delivered:
            order.update(f"{d.seqno} {d.sender} {d.incarnation} {d.local_seqno}\n".encode() + d.payload)
        typer.echo(f"    {observer}: {len(delivered)} deliveries, digest {order.hexdigest()[:32]}")


def show_verdict(anomalies: Sequence[Anomaly]) -> None:
    """Print the checker's anomalies, and the verdict."""
    for anomaly in anomalies:
        typer.echo(f"    {anomaly.name}: {anomaly.detail}; seqnos {anomaly.seqnos}")
    say(f"verdict: {f'{len(anomalies)} anomalies' if anomalies else 'every promise holds'}")
