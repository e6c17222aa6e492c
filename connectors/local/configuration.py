"""Find the files of `conf/`, which is beside `connectors/` in the repository and in an installed abcast."""

from __future__ import annotations

from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parents[2] / "conf"


def configuration_file(name: str) -> Path:
    """Return the file of `conf/` with this name."""
    return _DIRECTORY / name
