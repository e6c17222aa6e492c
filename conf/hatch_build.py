"""Lay out the wheel: one package, `abcast`, with the packages of the repository below it.

In the repository, `ordering`, `connectors` and `jobs` are at the top, and import each other by these names. In a user's
environment such names would collide with other modules. So the build moves them below `abcast`, together with `conf`,
and changes their imports: `from connectors.kafka import codec` becomes `from abcast.connectors.kafka import codec`.
Line numbers stay. An import that can't be changed that way (`import connectors.x`, a module's name in a string) ends
the build.

An editable install needs none of this: it puts the repository and `conf/`, with its `abcast`, on the path.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("ordering", "connectors", "jobs")
CONFIGURATION = ("*.properties", "*.toml", "*.xml", "scala/*.scala", "monitoring/*", "jars.lock")
_NAME_OF_OURS = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.[a-z_]+)+")


class WheelLayout(BuildHookInterface):  # type: ignore[type-arg] # its parameter is a class of hatchling's own
    """Hatchling calls it before and after it writes the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Lay out the package in a temporary directory, and have that included."""
        self._laid_out: Path | None = None
        if version != "editable":
            self._laid_out = Path(tempfile.mkdtemp(prefix="abcast-wheel-"))
            try:
                lay_out(Path(self.root), self._laid_out)
            except BaseException:  # then hatchling does not finalize
                shutil.rmtree(self._laid_out)
                raise
            build_data["force_include"][str(self._laid_out)] = "abcast"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary directory."""
        if self._laid_out is not None:
            shutil.rmtree(self._laid_out)


def lay_out(root: Path, target: Path) -> None:
    """Copy to `target` what the package `abcast` consists of. Raises ValueError for code that can't be moved."""
    conf = root / "conf"
    files = {file: Path(file.name) for file in (conf / "abcast").iterdir() if file.is_file()}
    for pattern in CONFIGURATION:
        files |= {file: file.relative_to(root) for file in conf.glob(pattern)}
    for package in PACKAGES:
        files |= {file: file.relative_to(root) for file in (root / package).rglob("*") if file.is_file()}
    for file, place in sorted(files.items()):
        if "__pycache__" in place.parts:
            continue
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".py":
            moved = move_imports(file.read_text(encoding="utf-8"), str(file.relative_to(root)))
            (target / place).write_text(moved, encoding="utf-8")
        else:
            shutil.copyfile(file, target / place)


def move_imports(code: str, name: str) -> str:
    """The code of a module with its imports of our packages moved below `abcast`. Raises ValueError."""
    lines = code.split("\n")
    for node in ast.walk(ast.parse(code, name)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] in PACKAGES for alias in node.names):
            raise ValueError(f"{name}:{node.lineno}: write `from … import …`; the name that `import` binds can't move.")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME_OF_OURS.fullmatch(node.value):
            raise ValueError(f"{name}:{node.lineno}: make {node.value!r} from __name__ or __package__; it moves.")
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in PACKAGES:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {node.module}", f"from abcast.{node.module}", 1)
    return "\n".join(lines)
