"""Find the Java that Spark and the embedded broker run on.

`JAVA_HOME` decides when it is set, as it does for Spark itself: another Java on the PATH would only hide the mistake
until Spark starts. `python -m connectors.local.java` checks it and says what to do; it needs only the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from ordering.base.errors import EnvironmentProblem

OLDEST_JAVA = 17
"""Spark 4 and Kafka 4's broker both need Java 17 or newer."""

_HOW = f"install a JDK {OLDEST_JAVA} or newer (for example OpenJDK) and put it on the PATH or set JAVA_HOME"


def require_java() -> Path:
    """Return the `java` to run.

    Raises:
        EnvironmentProblem: there is none, it does not run, or it is older than 17.
    """
    java = _find_java()
    version = java_version(java)
    if version is None:
        raise EnvironmentProblem(f"{java} does not answer to -version: {_HOW}.")
    if version < OLDEST_JAVA:
        raise EnvironmentProblem(f"{java} is Java {version}, which is too old: {_HOW}.")
    return java


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise EnvironmentProblem(f"JAVA_HOME is {home}, but there is no bin/java in it: correct or unset it.")
        return java
    found = shutil.which("java")
    if found is None:
        raise EnvironmentProblem(f"No Java was found: {_HOW}.")
    return Path(found)


@lru_cache
def java_version(java: Path) -> int | None:
    """Return the feature version of `java` (17, 21, …), or None if it can't be run or prints something unknown.

    A signal to all processes of a job kills that `java`, too. It is run once more, so that the job stops in order.
    """
    for _ in range(2):
        try:
            answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if answer.returncode >= 0:
            break
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> int | None:
    """Return the feature version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_392"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    # Up to Java 8 the feature version came second.
    return int(second) if first == 1 and second is not None else first


if __name__ == "__main__":
    try:
        require_java()
    except EnvironmentProblem as problem:
        sys.exit(str(problem))
