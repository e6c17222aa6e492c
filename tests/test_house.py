"""What the linters can't see of the house's rules."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [path for package in ("ordering", "connectors", "jobs") for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_private_name_is_imported_across_modules(path: Path) -> None:
    """ruff sees access to private members (SLF), but not imports of private names."""
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    assert [alias.name for node in imports for alias in node.names if alias.name.startswith("_")] == []


def test_what_completion_shows() -> None:
    """The names that applications use, and none that the package has for itself."""
    import abcast
    from abcast import _public

    assert [name for name in dir(abcast) if not name.startswith("__")] == sorted(
        name for name in _public.__all__ if not name.startswith("__")
    )


def test_the_package_tells_its_version() -> None:
    import abcast

    assert abcast.__version__ == version("abcast")
    assert "__version__" in dir(abcast)
