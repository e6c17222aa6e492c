"""The picture of latency against the rate, as SVG, from what a run has measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"spark": "#d95f02", "process": "#1b9e77"}
_TOO_LATE_MS = 1000.0


def draw(result: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Write `result`, as `tests.bench.rates` measures it: both axes logarithmic; p50 and p99 of each engine.

    A rate that the sender did not keep has no point.
    """
    figure = empty_figure(4.2)
    axes = figure.add_subplot(
        xscale="log", yscale="log", xlabel="messages a second", ylabel="from broadcast to deliveries, ms"
    )
    for engine, rows in result.items():
        kept = [row for row in rows if row["sender_behind_ms"] <= _TOO_LATE_MS]
        for name, style in (("p50_ms", "o-"), ("p99_ms", "s--")):
            axes.plot(
                [row["per_s"] for row in kept],
                [row[name] for row in kept],
                style,
                color=_COLOURS[engine],
                label=f"{engine}, {name.removesuffix('_ms')}",
            )
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    save(figure, path)


def empty_figure(height: float) -> Figure:
    """Return a figure as wide as a page, in inches."""
    # Imported here: it takes half a second, and few importers of this module draw.
    from matplotlib.figure import Figure

    return Figure(figsize=(7, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Save as SVG. The same figures give the same file."""
    from matplotlib import rc_context

    # Text as text: as outlines it is most of the file.
    with rc_context({"svg.hashsalt": "abcast", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
