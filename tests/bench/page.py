"""`python -m tests.bench.page`: write the figures of one run into docs/performance.md, and into the history.

All figures of the page come from one JSON file, so from one command on one commit. What it lacks is not measured.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.bench import history
from tests.bench.figures import TABLES, WARMED
from tests.bench.picture import draw
from tests.bench.plan import SECTIONS
from tests.bench.tables import NOT_MEASURED, NOT_RUN, Table

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "latency.svg"
"""Latency against the rate, from the same run."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
DEFAULT_JSON = Path("abcast-data") / "bench.json"
HEADING = "\n## Figures\n"
_WIDTH = 140
_NUMBER = re.compile(r"[\d,.]*")


def figures(results: Mapping[str, Any]) -> str:
    """Return the tables of a run, by section."""
    return "\n\n".join(part for section in SECTIONS for part in _section(section, results))


def _section(section: str, results: Mapping[str, Any]) -> Iterator[str]:
    result = results.get(section, {"failed": NOT_RUN})
    yield f"### {section.capitalize()}"
    yield textwrap.fill(WARMED[section], _WIDTH)
    for table in TABLES:
        if table.section == section:
            yield textwrap.fill(table.caption, _WIDTH)
            yield _table(table, result)
            if table.aims:
                yield "\n".join(f"- Aim: {aim.said(result)}" for aim in table.aims)


def _table(table: Table, result: Any) -> str:
    rows = table.cells(result) or [(NOT_MEASURED, *[""] * (len(table.columns) - 1))]
    right = ["---:" if all(_NUMBER.fullmatch(cell) for cell in column) else "---" for column in zip(*rows, strict=True)]
    return "\n".join(
        f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in row)}|" for row in (table.columns, right, *rows)
    )


def without_out(command: str) -> str:
    """Return a command's options without the file that it wrote."""
    return re.sub(r" ?--out \S+", "", command)


def filled(page: str, run: Mapping[str, Any]) -> str:
    """Return the page with the figures of a run in place of all earlier ones."""
    arguments = without_out(run["command"]).replace('"', "'")
    machine = run["machine"]
    facts = {
        "Command": f'`make bench ARGS="{arguments}"`' if arguments else "`make bench`",
        "Commit": f"`{machine['commit']}`",
        "Machine": f"{machine['cores']} cores ({machine['cpu']}), {machine['memory']}, Python {machine['python']}",
    }
    if load := run.get("load_average", {}).values():
        facts["Load"] = f"{min(load):.0f} to {max(load):.0f} when the sections began"
    before, _, old = page.partition(HEADING)
    said = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    return f"{before}{HEADING}\n{said}\n{figures(run['results'])}\n" + old[old.index("\n## ") :]


def main(arguments: list[str]) -> int:
    """Write the page from the JSON file that is named, or from the last run's here."""
    source = Path(arguments[0]) if arguments else DEFAULT_JSON
    run = json.loads(source.read_text(encoding="utf-8"))
    if run["machine"]["commit"].endswith("+"):
        print(f"{source} was measured on a commit with changes: commit them, and measure again.", file=sys.stderr)
        return 1
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")
    if "failed" not in run["results"].get("rates", {"failed": NOT_RUN}):
        draw(run["results"]["rates"], PICTURE)
    runs = history.with_run(history.load(), run)
    history.HISTORY.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    history.draw(runs)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
