"""What both demos say, and how they show what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from connectors import Delivery
    from ordering.checker.checker import Anomaly


def say(text: str) -> None:
    """A line about what happens. On a terminal, progress bars are drawn below it."""
    from rich import get_console

    get_console().print(f"● {text}", markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_order(deliveries: Mapping[str, Sequence[Delivery]]) -> None:
    """A digest of what each observer delivered, which only the same order makes."""
    for observer, delivered in deliveries.items():
        order = hashlib.sha256()
        for d in delivered:
            order.update(f"{d.seqno} {d.sender} {d.incarnation} {d.local_seqno}\n".encode() + d.payload)
        typer.echo(f"    {observer}: {len(delivered)} deliveries, digest {order.hexdigest()[:32]}")


def show_verdict(anomalies: Sequence[Anomaly]) -> None:
    """What the checker has found."""
    for anomaly in anomalies:
        typer.echo(f"    {anomaly.name}: {anomaly.detail}; seqnos {anomaly.seqnos}")
    say(f"verdict: {f'{len(anomalies)} anomalies' if anomalies else 'every promise holds'}")
