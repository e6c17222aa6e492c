"""The pages: README, docs/, CHANGELOG and CONTRIBUTING, taken apart for the tests that hold them to the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *DOCS,
        *sorted((ROOT / "docs" / "decisions").glob("*.md")),
        *sorted((ROOT / "docs" / "protocols").glob("*.md")),
    )
}
README = PAGES["README.md"]
SOURCE_FILES = [path for room in ("ordering", "connectors", "jobs") for path in sorted((ROOT / room).rglob("*.py"))]

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def doc(name: str) -> str:
    """Return a page of docs/."""
    return PAGES[f"docs/{name}.md"]


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or a higher one."""
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def fences(page: str, language: str) -> list[str]:
    """Return the code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def prose(page: str) -> str:
    """Return the page without its code blocks."""
    return _FENCED.sub("", page)


def tables(text: str) -> list[list[tuple[str, ...]]]:
    """Return the rows of each table, without its head."""
    found = re.findall(r"^\|.*\n\| ---.*\n((?:\|.*\n?)*)", text, re.MULTILINE)
    return [[_cells(row) for row in body.splitlines()] for body in found]


def _cells(row: str) -> tuple[str, ...]:
    return tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip().strip("|")))


def spans(text: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
