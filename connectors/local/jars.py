"""Fetch the jars that Spark and the embedded broker need, once, with the Ivy inside pyspark.

They are in `$ABCAST_JARS`, or else in `share/abcast/jars` of the Python environment, a directory for each set: `spark/`
and `broker/` (the configurations of `conf/ivy.xml`), `s3/` (`conf/ivy-s3.xml`) and `own/`. abcast's own code, in `own/`
and `s3/`, is compiled from `conf/scala/*.scala`, with the compiler inside pyspark. A directory is either complete or
absent: jars go into a temporary directory that is renamed at the end. If an Ivy file or a source has changed, the next
use replaces its directory. All of it can be copied to a machine without network.

Fetched jars are used only if each has the SHA-256 of conf/jars.lock (in the form that `sha256sum -c` reads, below the
directory of the jars). `python -m connectors.local.jars` fetches `spark`, `broker` and `own`, and checks them; `make
setup` runs it. `python -m connectors.local.jars s3` does so for tables on S3, whose jars otherwise come with the first
job that needs them.

Environment:
    ABCAST_JARS          another directory for the jars
    ABCAST_IVY_SETTINGS  an Ivy settings file, for a company's own mirror
    HTTPS_PROXY          honoured, as pip does
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from connectors.local.configuration import configuration_file
from connectors.local.java import require_java
from ordering.base.errors import AbcastError, EnvironmentProblem, UsageError

Progress = Callable[[str], None]
"""A function that gets one sentence on each slow step: the work, or the reason for the wait."""

CONFIGURATIONS = {
    "spark": "12 jars, 23 MB",
    "broker": "46 jars, 45 MB",
    "own": "one that is compiled",
    "s3": "36 jars, 13 MB, and one that is compiled",
}
"""The sets of jars, with their sizes, for users that wait for them."""

ALWAYS = ("spark", "broker", "own")
"""The sets that `make setup` fetches. The others come when they are first needed."""
FOR_SPARK = ("spark", "own")
"""The sets of each Spark session and its executors."""
_IVY_FILES = {"spark": "ivy.xml", "broker": "ivy.xml", "s3": "ivy-s3.xml"}


class _Compiled(NamedTuple):
    """A jar of our own: its sources in `conf`, and the jars of pyspark and other sets that it is compiled against."""

    sources: tuple[str, ...]
    jar: str
    jars_of_spark: tuple[str, ...]
    sets: tuple[str, ...] = ()


_COMPILED = {
    "own": _Compiled(
        (
            "scala/Carried.scala",
            "scala/Forward.scala",
            "scala/LocalFiles.scala",
            "scala/Packs.scala",
            "scala/RecordReader.scala",
            "scala/RecordsAside.scala",
            "scala/RowsOfRuns.scala",
            "scala/Words.scala",
        ),
        "abcast-columns.jar",
        ("spark-*.jar", "hadoop-client-*.jar", "kryo-shaded-*.jar", "jackson-*.jar"),
    ),
    "s3": _Compiled(
        ("scala/ConditionalPutLogStore.scala",), "abcast-log-store.jar", ("hadoop-client-*.jar",), ("spark",)
    ),
}

_STAMP = ".complete"
"""A file in a finished directory: the hash of the Ivy file and the sources that it was made from."""

_DOWNLOAD_TIMEOUT_S = 900
_LOCK = "jars.lock"


def say(sentence: str) -> None:
    """Report progress by default: one line on standard error."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def jars_directory() -> Path:
    """Return the directory of the jars, whether or not they have been fetched."""
    chosen = os.environ.get("ABCAST_JARS")
    return Path(chosen).expanduser().resolve() if chosen else Path(sys.prefix) / "share" / "abcast" / "jars"


def jars_of(configuration: str, progress: Progress = say) -> list[Path]:
    """Return the jars of a configuration, sorted by name; fetch them if they are missing. Raises like `resolve`."""
    resolve([configuration], progress)
    return sorted((jars_directory() / configuration).glob("*.jar"))


def resolve(configurations: Sequence[str] = ALWAYS, progress: Progress = say) -> None:
    """Fetch or compile the missing jars of several configurations at once.

    Raises:
        UsageError: there is no configuration of that name; the extra that fetches them is not installed.
        EnvironmentProblem: no Java, no network, a jar is not the one of conf/jars.lock, or the directory of the jars
            can't be written.
    """
    unknown = [name for name in configurations if name not in CONFIGURATIONS]
    if unknown:
        raise UsageError(f"There are no jars for {', '.join(unknown)}: choose from {', '.join(CONFIGURATIONS)}.")
    missing = [name for name in configurations if not _is_complete(name)]
    # Two JVMs rather than one Ivy with two configurations: most of the time is waiting for small files.
    with ThreadPoolExecutor(max_workers=len(CONFIGURATIONS)) as pool:
        for done in [pool.submit(_fetch, name, progress) for name in missing]:
            done.result()


def _wanted_stamp(configuration: str) -> str:
    made_from = [_IVY_FILES[configuration]] if configuration in _IVY_FILES else []
    if configuration in _COMPILED:
        made_from += _COMPILED[configuration].sources
    return hashlib.sha256(b"".join(configuration_file(name).read_bytes() for name in made_from)).hexdigest()


def _is_complete(configuration: str) -> bool:
    try:
        return (jars_directory() / configuration / _STAMP).read_text(encoding="ascii") == _wanted_stamp(configuration)
    except OSError:
        return False


def _fetch(configuration: str, progress: Progress) -> None:
    """Fetch or compile one configuration, into a complete directory. Raises like `resolve`."""
    jars = jars_directory()
    try:
        jars.mkdir(parents=True, exist_ok=True)
        with _only_one_process(jars / f".{configuration}.lock", configuration, progress):
            if _is_complete(configuration):  # another process has just fetched it
                return
            started = time.monotonic()
            _ivy_jar()  # fails before any progress is reported
            if configuration in _IVY_FILES:
                what = f"{CONFIGURATIONS[configuration]}; about half a minute"
                progress(f"Fetching the jars for {configuration} ({what}).")
            else:
                progress("Compiling abcast's own part of Spark (some seconds).")
            with tempfile.TemporaryDirectory(prefix=f".{configuration}-", dir=jars) as work:
                fetched = Path(work) / "jars"
                if configuration in _IVY_FILES:
                    retrieve(configuration_file(_IVY_FILES[configuration]), configuration, fetched)
                if configuration in _COMPILED:
                    fetched.mkdir(exist_ok=True)
                    _compile(_COMPILED[configuration], fetched)
                check_hashes(fetched, configuration)
                (fetched / _STAMP).write_text(_wanted_stamp(configuration), encoding="ascii")
                target = jars / configuration
                if target.exists():
                    target.rename(Path(work) / "old")
                fetched.rename(target)
            count = len(list((jars / configuration).glob("*.jar")))
            done = f"Fetched {count} jars for {configuration}" if configuration in _IVY_FILES else "Compiled it"
            progress(f"{done} in {time.monotonic() - started:.0f} s.")
    except OSError as error:
        raise EnvironmentProblem(
            f"The jars for {configuration} can't be written to {jars} ({error.strerror or error}): "
            "free disk space, or name another directory in ABCAST_JARS."
        ) from error


def check_hashes(directory: Path, *configurations: str) -> None:
    """Check that a directory has exactly the jars of conf/jars.lock for the configurations, with their content.

    Raises EnvironmentProblem.
    """
    known = {name: digest for each in configurations for name, digest in locked_hashes(each).items()}
    found = hashes(directory)
    if found == known:
        return
    changed = sorted(name for name in found.keys() & known.keys() if found[name] != known[name])
    what = [
        f"{text} {', '.join(names)}"
        for text, names in (
            ("another content than expected has", changed),
            ("not expected is", sorted(found.keys() - known.keys())),
            ("missing is", sorted(known.keys() - found.keys())),
        )
        if names
    ]
    raise EnvironmentProblem(
        f"The jars for {', '.join(configurations)} in {directory} are not those of conf/{_LOCK} ({'; '.join(what)}), "
        "and are not used: find out where they come from (a mirror, ABCAST_IVY_SETTINGS?) before anything else."
    )


def locked_hashes(configuration: str) -> dict[str, str]:
    """Return the SHA-256 of each jar of a configuration in conf/jars.lock, by its name."""
    lines = (line.split() for line in configuration_file(_LOCK).read_text(encoding="ascii").splitlines())
    return {Path(name).name: digest for digest, name in lines if name.startswith(f"{configuration}/")}


def hashes(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each jar in a directory, by its name."""
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(directory.glob("*.jar"))}


def _ivy_jar() -> Path:
    # Found without importing pyspark, which would take a second.
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    raise UsageError("pyspark, which fetches the jars, is not installed: pip install 'abcast[jobs]'.")


def retrieve(ivy_file: Path, configuration: str, target: Path) -> None:
    """Fetch the jars of a configuration of an Ivy file into `target`. Raises EnvironmentProblem, UsageError."""
    java, ivy = require_java(), _ivy_jar()
    # The cache makes a later ivy.xml cheap. One per configuration, because two Ivys must not share one.
    cache = jars_directory().parent / "ivy" / configuration
    log = jars_directory().parent / "ivy" / f"{configuration}.log"
    cache.mkdir(parents=True, exist_ok=True)
    settings = os.environ.get("ABCAST_IVY_SETTINGS")
    command = [
        str(java),
        # Ivy waits for ever on a network that swallows packets.
        "-Dsun.net.client.defaultConnectTimeout=20000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *_proxy_options(),
        *("-jar", str(ivy)),
        *(("-settings", settings) if settings else ()),
        *("-ivy", str(ivy_file)),
        *("-cache", str(cache)),
        *("-confs", configuration),
        *("-retrieve", f"{target}/[artifact]-[revision].[ext]"),
    ]
    with log.open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=_DOWNLOAD_TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    if code != 0 or not any(target.glob("*.jar")):
        reason = failure_reason(log.read_text(encoding="utf-8", errors="replace"))
        raise EnvironmentProblem(
            f"The jars for {configuration} could not be fetched ({reason}): check the network and HTTPS_PROXY, then "
            f"run the same command again; what has arrived is kept, and Ivy's own words are in {log}."
        )


def _compile(what: _Compiled, target: Path) -> None:
    """Compile our sources into a jar, always of the same bytes. Raises EnvironmentProblem."""
    of_spark = _ivy_jar().parent
    compiler = [*of_spark.glob("scala-compiler-*.jar"), *of_spark.glob("scala-reflect-*.jar")]
    library = [*of_spark.glob("scala-library-*.jar")]
    against = [jar for pattern in what.jars_of_spark for jar in sorted(of_spark.glob(pattern))]
    against += [jar for configuration in what.sets for jar in jars_of(configuration)]
    with tempfile.TemporaryDirectory(prefix="abcast-compiled-") as compiled:
        command = [
            *(str(require_java()), "-cp", os.pathsep.join(map(str, [*compiler, *library])), "scala.tools.nsc.Main"),
            *("-d", compiled, "-classpath", os.pathsep.join(map(str, [*against, *library]))),
            *(str(configuration_file(source)) for source in what.sources),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
        classes = sorted(Path(compiled).rglob("*.class"))
        if done.returncode or not classes:
            raise EnvironmentProblem(
                f"{', '.join(what.sources)} of conf/ can't be compiled: {done.stderr[:300] or done.returncode}."
            )
        with zipfile.ZipFile(target / what.jar, "w") as jar:
            for file in classes:
                jar.writestr(zipfile.ZipInfo(str(file.relative_to(compiled))), file.read_bytes())


def _proxy_options() -> list[str]:
    """Return Java's form of HTTPS_PROXY, which Java does not read itself."""
    proxy = urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or "")
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 8080}"]


def failure_reason(ivy_log: str) -> str:
    """Return the cause of a failure, in a few words, from Ivy's output; with the first module that failed, if known."""
    missing = re.search(r"::\s+(\S+?)#(\S+?);(\S+?): (?:not found|.*)", ivy_log)
    module = f" for {missing[2]} {missing[3]}" if missing else ""
    if re.search(r"UnknownHost|Host not found", ivy_log, re.IGNORECASE):
        return f"the name of the registry can't be resolved{module}"
    if re.search(r"timed? ?out|ConnectException|Connection refused|unreachable", ivy_log, re.IGNORECASE):
        return f"the registry does not answer{module}"
    if "No space left" in ivy_log:
        return "the disk is full"
    return f"not found{module}" if missing else "the download stopped"


@contextmanager
def _only_one_process(lock: Path, configuration: str, progress: Progress) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"Waiting for another process that fetches the jars for {configuration}.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        wanted = sys.argv[1:] or ALWAYS
        resolve(wanted)
        for fetched in wanted:
            check_hashes(jars_directory() / fetched, fetched)
    except AbcastError as problem:
        sys.exit(str(problem))
