"""What executors need and may not have, in one directory, and the line that starts a job with it.

An executor runs Spark's own code in Java, and the sequencer's decisions in Python. Of ours it needs: the jars of
conf/jars.lock (those for tables on S3, where the tables are there), our packages, and numpy, pandas and pyarrow with
what these require. Kafka is talked to by the jars, so no Python client of it goes along. pyspark is a part of Spark,
where executors have it.

The Python part is an archive that Spark unpacks into each executor's working directory, under a name of ours. It must
be on Python's path before a worker begins, as the workers' daemon is a module of ours (`spark.python.daemon.module`):
what spark-submit's --py-files brings comes too late for that. The daemon is started in that directory, so a relative
path does it (`spark.executorEnv.PYTHONPATH`).

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
"""The distributions that Python on executors imports, beside pyspark and ours."""
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
"""gzip's level: a line is printed after seconds, not after a minute."""


class Manager(str, Enum):
    """What gives a Spark application its executors."""

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
    """What was written: files below one directory."""

    archive: Path
    jars: list[Path]
    script: Path


def pack(directory: Path, *, with_libraries: bool = True, configurations: Sequence[str] = FOR_SPARK) -> Package:
    """Write all of it into the directory, which is made. What an earlier call has left there is replaced.

    Without libraries, executors must have LIBRARIES of their own. `configurations`: of jars, which are fetched if they
    are not there. Raises EnvironmentProblem, and OSError.
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
    """What manages that master's executors: `master` is the name of a manager, or a URL. Raises UsageError."""
    if master in {each.value for each in Manager}:
        return Manager(master)
    for manager, url in _MASTERS.items():
        if master.startswith(url.partition("HOST")[0]):
            return manager
    raise UsageError(f"the master {master} is none of standalone, yarn, kubernetes, spark://…, k8s://….")


def submit_line(package: Package, master: str, python: str, command: Sequence[str] = ("run",)) -> str:
    """What a shell is told to start `abcast COMMAND` at that master; more options of the command may follow.

    `master`: the URL, or the name of a manager, for a line with HOST in it. `python`: what the executors call theirs.
    Raises UsageError.
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
    """The files of our packages, by their places below a directory of Python's path."""
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
    """These distributions, and all that they require and that is installed here."""
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
    """Without the name and number of who packs. The time stays, as Python's bytecode is valid for it alone."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
