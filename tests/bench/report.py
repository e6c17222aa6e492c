"""The tables of `tests.bench.figures` on the terminal, each with a verdict on its aims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import table as rich
from rich.console import Console

from tests.bench.figures import TABLES, WARMED


def show(console: Console, section: str, result: Any) -> None:
    """Print a section's tables, if this run has measured them."""
    console.print()
    if isinstance(result, dict) and "failed" in result:
        console.print(f"{section}: failed: {result['failed']}", style="red")
        return
    console.print(f"[bold]{section}[/] {WARMED[section]}", highlight=False)
    for table in TABLES:
        if table.section != section or not (cells := table.cells(result)):
            continue
        console.print()
        shown = rich.Table(*table.columns, title=table.caption, title_justify="left", title_style="")
        for row in cells:
            shown.add_row(*row)
        console.print(shown)
        for aim in table.aims:
            style = {True: "green", False: "red", None: "dim"}[aim.is_met(result)]
            console.print(aim.said(result), style=style, highlight=False)


def show_machine(console: Console, machine: Mapping[str, Any]) -> None:
    """Show the machine in one line."""
    packages = machine["packages"]
    console.print(
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory']}, load {machine['load_average']:.1f}; "
        f"Python {machine['python']}, {machine['java']}, pyspark {packages['pyspark']}, "
        f"delta-spark {packages['delta-spark']}, kafka-python {packages['kafka-python']}; commit {machine['commit']}",
        style="dim",
        highlight=False,
    )
