"""The tables on the terminal: the rows of `tests.bench.figures`, each with a verdict on its aim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figures import ROWS


def show(console: Console, section: str, result: Any) -> None:
    """Print a section's table, without rows that this run did not measure."""
    console.print()
    if isinstance(result, dict) and "failed" in result:
        console.print(f"{section}: failed: {result['failed']}", style="red")
        return
    table = Table("what", "unit", "measured", "aim", "", title=section, title_justify="left", title_style="bold")
    for row in ROWS:
        if row.section == section and (measured := row.measured(result)):
            verdict = "" if row.is_met is None else "[green]met[/]" if row.is_met(result) else "[red]missed[/]"
            table.add_row(row.what, row.unit, "\n".join(measured), row.aim, verdict)
    console.print(table)


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
