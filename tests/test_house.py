"""Rules of the house that the linters can't see."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [path for package in ("ordering", "connectors", "jobs") for path in sorted((ROOT / package).rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.slow
def test_no_private_name_is_imported_across_modules() -> None:
    """ruff sees access to private members (SLF), but not imports of private names."""
    assert {path: found for path in MODULES if (found := private_imports(path))} == {}


def private_imports(path: Path) -> list[str]:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports for alias in node.names if alias.name.startswith("_")]


def test_what_completion_shows() -> None:
    """Completion shows the names for applications, and none that the package has for itself."""
    import abcast
    from abcast import _public

    assert [name for name in dir(abcast) if not name.startswith("__")] == sorted(
        name for name in _public.__all__ if not name.startswith("__")
    )


def test_the_package_tells_its_version() -> None:
    import abcast

    assert abcast.__version__ == version("abcast")
    assert "__version__" in dir(abcast)


# --- words ---

NOT_YET = {
    "ordering/checker/checker.py": "names a heading of the README, What is promised",
}
"""Modules whose docstrings are not held to the rule, and why."""
NO_FIRST_WORDS = frozenset(
    [
        "all",
        "and",
        "as",
        "but",
        "does",
        "has",
        "have",
        "he",
        "how",
        "if",
        "is",
        "it",
        "nobody",
        "nothing",
        "of",
        "one",
        "or",
        "so",
        "such",
        "that",
        "they",
        "those",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
    ]
)
"""A docstring begins with a verb (Return, Raise, Whether …) or names a thing: a reader learns the fact first."""
TWICE_READ = re.compile(
    r"\b(what (is|are|was|were|has|have|comes?|came|stands?)|of which|of whom|whoever|such a one"
    r"|(stands?|stood)(?! by\b)"
    r"|(?<!one )who (reads?|writes?|sends?|has|is|starts?|asks?|waits?|stays?|was)|he|his|him|meanwhile|nobody who"
    r"|those (who|that|of))\b",
    re.IGNORECASE,
)
"""Phrases that hide who acts, or whose sense comes at the end."""


@pytest.mark.slow
def test_a_sentence_is_read_once() -> None:
    """Docstrings and comments name the actor, and begin with the fact. `NOT_YET` has the exceptions."""
    held = [path for path in (*MODULES, *TESTS) if path.relative_to(ROOT).as_posix() not in NOT_YET]
    assert {path: found for path in held if (found := read_twice(path.read_text(encoding="utf-8")))} == {}


def test_nobody_is_whoever() -> None:
    """Pages, help texts and conf/ name the actor, too."""
    texts = [*MODULES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "conf").rglob("*.y*ml")]
    assert [path for path in texts if re.search("whoever", path.read_text(encoding="utf-8"), re.IGNORECASE)] == []


def read_twice(code: str) -> list[str]:
    """Return the docstrings and comments that break the rule."""
    docstrings, texts = docstrings_of(ast.parse(code)), []
    for text in docstrings:
        first = re.match(r"\W*([\w']+)", text)
        if first and first[1].lower() in NO_FIRST_WORDS:
            texts.append(text)
    if TWICE_READ.search(code):  # it takes much less time than to find the comments
        tokens = tokenize.generate_tokens(io.StringIO(code).readline)
        comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
        texts += [text for text in (*docstrings, *comments) if TWICE_READ.search(text)]
    return texts


def docstrings_of(tree: ast.Module) -> list[str]:
    """Return the docstrings of a module, its classes, functions, constants and fields."""
    bodies = [node.body for node in statements(tree) if isinstance(node, DOCUMENTED)]
    said = [body[0] for body in bodies if body]
    said += [
        after
        for body in bodies
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.Assign | ast.AnnAssign)
    ]
    values = [each.value for each in said if isinstance(each, ast.Expr)]
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and all its statements. `ast.walk`, which yields expressions, too, takes five times as long."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, name, ())


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


# --- rooms and names ---

MOST_MODULES = 20


@pytest.mark.slow
def test_a_public_class_has_its_name_alone() -> None:
    """A name is one class's in ordering, connectors and jobs together."""
    defined: Counter[str] = Counter()
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined.update(node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert [name for name, times in defined.items() if times > 1] == []


def test_a_room_can_be_overseen() -> None:
    """No package has more modules of its own than one can look through."""
    rooms = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {str(room.relative_to(ROOT)): count for room, count in rooms.items() if count > MOST_MODULES} == {}
