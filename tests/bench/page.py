"""`python -m tests.bench.page`: write the figures of one run into the table of docs/performance.md.

All figures of the page come from one JSON file, so from one command on one commit. What it lacks is not measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.figures import NOT_RUN, ROWS
from tests.bench.picture import draw

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "latency.svg"
"""Latency against the rate, from the same run."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
DEFAULT_JSON = Path("abcast-data") / "bench.json"
HEAD = "| section | what | unit | aim | measured |\n| --- | --- | --- | --- | --- |\n"


def table(results: Mapping[str, Any]) -> str:
    """The table with the results of a run, by section."""
    return HEAD + "".join(f"| {' | '.join(row.cells(results))} |\n".replace("|  |", "| |") for row in ROWS)


def filled(page: str, run: Mapping[str, Any]) -> str:
    """Return the page with the figures of a run in place of all earlier ones."""
    arguments = str(run["command"]).replace('"', "'")
    machine = run["machine"]
    facts = {
        "Command": f'`make bench ARGS="{arguments}"`' if arguments else "`make bench`",
        "Commit": f"`{machine['commit']}`",
        "Machine": f"{machine['cores']} cores ({machine['cpu']}), {machine['memory']}, Python {machine['python']}",
    }
    for name, value in facts.items():
        before, _, behind = page.partition(f"\n- {name}: ")
        page = f"{before}\n- {name}: {value}\n{behind.partition(chr(10))[2]}"
    start = page.index(HEAD)
    end = page.index("\n\n", start) + 1
    return page[:start] + table(run["results"]) + page[end:]


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
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
