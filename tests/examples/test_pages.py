"""What docs/examples.md shows stands in the programs, and each program is there."""

from __future__ import annotations

from pathlib import Path

from tests.papers import doc, fences

HERE = Path(__file__).parent
PROGRAMS = [
    *(path for path in sorted(HERE.glob("*.py")) if not path.name.startswith(("test_", "__"))),
    *sorted((HERE / "javascript").glob("*.mjs")),
]


def test_each_program_is_linked() -> None:
    for path in PROGRAMS:
        assert f"](../{path.relative_to(HERE.parent.parent).as_posix()})" in doc("examples")


def test_what_is_shown_is_run() -> None:
    sources = [path.read_text(encoding="utf-8") for path in PROGRAMS]
    shown = [*fences(doc("examples"), "py"), *fences(doc("examples"), "js")]
    assert len(shown) > 8
    for code in shown:
        assert any(code in without_margin(source, code) for source in sources), code


def without_margin(source: str, code: str) -> str:
    """The source, moved to the left as far as the code was."""
    first = code.partition("\n")[0]
    margin = next((line[: -len(first)] for line in source.splitlines() if line.strip() == first.strip()), "")
    return "\n".join(line.removeprefix(margin) for line in source.splitlines()) + "\n"
