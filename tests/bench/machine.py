"""The machine and the versions behind the figures."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from connectors.local.java import require_java

_PACKAGES = ("pyspark", "delta-spark", "kafka-python", "crc32c", "pandas", "pyarrow", "numpy", "deltalake")


def facts() -> dict[str, Any]:
    """Cores, memory, load, versions, and the commit (with `+` when something was changed since)."""
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu": _after_colon(Path("/proc/cpuinfo"), "model name"),
        "memory": _after_colon(Path("/proc/meminfo"), "MemTotal"),
        "load_average": load_average(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _said(str(require_java()), "-version").partition("\n")[0],
        "commit": _said("git", "rev-parse", "--short", "HEAD") + "+" * bool(_said("git", "status", "--porcelain")),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def load_average() -> float:
    """Return the load of the last minute: well above our own use, other work ran on the machine."""
    return os.getloadavg()[0]


def _after_colon(file: Path, name: str) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return ""
    # java says its version on standard error.
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""
