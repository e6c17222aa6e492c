"""The lines that docs/examples.md shows are in the programs, and each program exists."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", [path for path in PROGRAMS if path.suffix == ".py"], ids=lambda path: path.stem)
def test_what_to_give_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started without anything, a program says how it is started."""
    monkeypatch.setattr(sys, "argv", [path.name])
    with pytest.raises(SystemExit, match=f"python {path.name} "):
        runpy.run_path(str(path), run_name="__main__")


def without_margin(source: str, code: str) -> str:
    """The source, moved to the left as far as the code was."""
    first = code.partition("\n")[0]
    margin = next((line[: -len(first)] for line in source.splitlines() if line.strip() == first.strip()), "")
    return "\n".join(line.removeprefix(margin) for line in source.splitlines()) + "\n"
