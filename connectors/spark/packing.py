"""The package for executors: one directory with all that they may lack, and the command that starts a job with it.

An executor runs Spark's own code in Java, and the sequencer's decisions in Python. It needs the jars of conf/jars.lock
(for tables on S3 also those jars), abcast's packages, and numpy, pandas and pyarrow with their requirements. The jars
talk to Kafka, so no Python client goes along. pyspark is part of Spark, which executors have.

The Python part is an archive that Spark unpacks into each executor's working directory, under a fixed name. It must be
on Python's path before a worker begins, as the workers' daemon is a module of abcast (`spark.python.daemon.module`):
files of spark-submit's --py-files come too late for that. The daemon is started in that directory, so a relative path
is enough (`spark.executorEnv.PYTHONPATH`).

The archive fits executors with the same minor version of Python (which pyspark demands anyway), the same operating
system and processor.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from connectors.local.jars import FOR_SPARK, check_hashes, jars_of
from ordering.base.errors import AbcastError, EnvironmentProblem, UsageError

LIBRARIES = ("numpy", "pandas", "pyarrow")
"""The distributions that Python on executors imports, beside pyspark and abcast."""
UNPACKED = "abcast-python"
"""The directory that the archive becomes in an executor's working directory."""

_ARCHIVE, _JARS, _SCRIPT = f"{UNPACKED}.tar.gz", "jars", "abcast_job.py"
_JOB = """\
\"\"\"The `abcast` command under spark-submit.\"\"\"
from abcast.__main__ import main

main()
"""
_NEVER_RUN = {"tests", "include"}
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_QUICK = 1
"""The level of gzip: the command is printed after seconds, not after a minute."""


class Manager(str, Enum):
    """The managers that give a Spark application its executors."""

    standalone = "standalone"
    yarn = "yarn"
    kubernetes = "kubernetes"


_MASTERS = {
    Manager.standalone: "spark://HOST:7077",
    Manager.yarn: "yarn",
    Manager.kubernetes: "k8s://https://HOST:6443",
}
_ONLY_THERE = {
    Manager.standalone: (),
    Manager.yarn: (("--deploy-mode", "client"),),
    Manager.kubernetes: (
        ("--deploy-mode", "client"),
        ("--conf", "spark.kubernetes.container.image=IMAGE"),
        ("--conf", "spark.kubernetes.namespace=NAMESPACE"),
        ("--conf", "spark.driver.host=DRIVER"),
    ),
}


class Package(NamedTuple):
    """The files that were written, below one directory."""

    archive: Path
    jars: list[Path]
    script: Path


def pack(directory: Path, *, with_libraries: bool = True, configurations: Sequence[str] = FOR_SPARK) -> Package:
    """Write the package into the directory, which is made. Files of an earlier call are replaced.

    Without libraries, executors must have LIBRARIES of their own. `configurations`: of jars, which are fetched if they
    are missing. Raises EnvironmentProblem, OSError.
    """
    jars = [jar for each in configurations for jar in jars_of(each)]
    files = {**_ours(), **(_libraries() if with_libraries else {})}
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=directory) as name:
        work = Path(name)
        with tarfile.open(work / _ARCHIVE, "w:gz", compresslevel=_QUICK) as archive:
            for place, file in sorted(files.items()):
                archive.add(file, place, recursive=False, filter=_of_nobody)
        (work / _JARS).mkdir()
        for jar in jars:
            shutil.copyfile(jar, work / _JARS / jar.name)
        check_hashes(work / _JARS, *configurations)
        (work / _SCRIPT).write_text(_JOB, encoding="utf-8")
        if (directory / _JARS).exists():
            (directory / _JARS).rename(work / "old")
        for made in (_ARCHIVE, _JARS, _SCRIPT):
            (work / made).rename(directory / made)
    return Package(directory / _ARCHIVE, [directory / _JARS / jar.name for jar in jars], directory / _SCRIPT)


def manager_of(master: str) -> Manager:
    """Return the manager of a master's executors. `master`: the name of a manager, or a URL. Raises UsageError."""
    if master in {each.value for each in Manager}:
        return Manager(master)
    for manager, url in _MASTERS.items():
        if master.startswith(url.partition("HOST")[0]):
            return manager
    raise UsageError(f"the master {master} is none of standalone, yarn, kubernetes, spark://…, k8s://….")


def submit_line(package: Package, master: str, python: str, command: Sequence[str] = ("run",)) -> str:
    """Return the shell command that submits `abcast COMMAND` to a master; further options may be appended.

    `master`: a URL, or the name of a manager. With a name, the URL has HOST for the user to replace, except for yarn.
    `python`: the executors' command for Python. Raises UsageError for any other master.
    """
    manager = manager_of(master)
    arguments = [
        ("--master", _MASTERS[manager] if master == manager.value else master),
        *_ONLY_THERE[manager],
        ("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        ("--conf", f"spark.pyspark.python={python}"),
        ("--conf", f"spark.executorEnv.PYTHONPATH={UNPACKED}"),
        ("--archives", f"{package.archive.absolute()}#{UNPACKED}"),
        ("--jars", ",".join(str(jar.absolute()) for jar in package.jars)),
        (str(package.script.absolute()), *command),
    ]
    return " \\\n  ".join([shlex.quote(str(_spark_submit())), *map(shlex.join, arguments)])


def _spark_submit() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "bin" / "spark-submit"


def _ours() -> dict[str, Path]:
    """Return the files of abcast's packages, by their paths below a directory of Python's path."""
    names = {where.partition(".")[0] for where in (__name__, AbcastError.__module__)}
    found: dict[str, Path] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        for top in (spec.submodule_search_locations or ()) if spec else ():
            files = (file for file in Path(top).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
            found |= {str(Path(name, file.relative_to(top))): file for file in files}
    return found


def _libraries() -> dict[str, Path]:
    return {
        str(place): Path(str(place.locate()))
        for name in _required(LIBRARIES)
        for place in _files_of(name)
        if place.parts[0] != ".." and not _NEVER_RUN.intersection(place.parts) and place.suffix != ".pyi"
    }


def _required(names: Iterable[str]) -> set[str]:
    """Return these distributions, and all their requirements that are installed here."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        for requirement in importlib.metadata.requires(name) or ():
            needed = _REQUIREMENT.match(requirement)
            if needed is not None and "extra ==" not in requirement and _is_installed(needed[0]):
                left.append(needed[0])
    return found


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _files_of(name: str) -> Iterator[importlib.metadata.PackagePath]:
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentProblem(f"{name} is not installed: pip install 'abcast[jobs]'.") from error
    if not files:
        raise EnvironmentProblem(f"{name} does not say which files it has: install it with pip, into an environment.")
    return (file for file in files if Path(str(file.locate())).is_file())


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner's name and number. The time stays, as Python's bytecode is valid only with it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
