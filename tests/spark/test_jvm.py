"""Start Spark's JVM as Spark's own launcher would, without its needless parts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from connectors.local.jars import jars_directory
from connectors.local.java import require_java
from connectors.spark.jvm import java_command
from tests.cli.process import ROOT
from tests.jvm import SHORT_LIVED

pytestmark = pytest.mark.spark

SETTINGS = {
    "spark.driver.extraClassPath": "/one.jar:/two.jar",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": '"-Dname=a b" -XX:+UseParallelGC',
}


def test_the_command_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands differ in the module, the place of temporary files, and settings in files. The test fails if a
    new Spark starts otherwise.
    """
    home = Path(pyspark.__file__).parent
    launcher = [str(require_java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/jars/*"]
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    file = ["--properties-file", "/scratch/spark.properties"]
    submit = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell"]
    environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*launcher, *submit], capture_output=True, env=environment, timeout=60, check=True)
    theirs = [word.decode() for word in done.stdout.strip(b"\0\n").split(b"\0")]
    theirs.remove("--add-modules=jdk.incubator.vector")
    for variable in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(variable, raising=False)
    ours = java_command(require_java(), SETTINGS, Path("/scratch"))
    ours.remove("-Djava.io.tmpdir=/scratch")
    options = ours.index("@/scratch/java.options")
    ours[options : options + 1] = shlex.split(SETTINGS["spark.driver.extraJavaOptions"])
    of_java = ours.index("org.apache.spark.deploy.SparkSubmit")
    assert ours[1:of_java] == theirs[1:of_java]
    assert ours[of_java + 1 :] == [*file, "pyspark-shell"]
    assert sorted(theirs[of_java + 1 :]) == sorted([*settings, "pyspark-shell"])


@pytest.mark.long
def test_secrets_are_on_no_command_line() -> None:
    """A user's settings reach the JVM unchanged, by files of that user's own; `ps` shows none of them.

    Spark looks at the user's jars, ours among them, before it has loaded any.
    """
    values = {
        "spark.hadoop.fs.s3a.secret.key": r"TOP-SECRET \1 #=:!ü'\"x\\",
        "spark.authenticate.secret": "TOP-SECRET 2",
        "spark.ssl.keyPassword": "!TOP-SECRET=3",
        "spark.jars": ",".join(str(jar) for jar in (jars_directory() / "own").glob("*.jar")),
    }
    given = " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in values.items())
    options = "--conf 'spark.driver.extraJavaOptions=-Dtest.password=TOP-SECRET-4 \"-Dtest.two=a \\\\ b\"'"
    code = f"""
import json, os, stat
from pathlib import Path
from connectors.spark.session import build_session
session = build_session('x', cores=1)
conf, process = session.sparkContext.getConf(), session.sparkContext._gateway.proc
java = session._jvm.java.lang.System.getProperty
files = list(Path(java("java.io.tmpdir")).glob("*.properties")) + list(Path(java("java.io.tmpdir")).glob("*.options"))
print(json.dumps([
    [conf.get(name) for name in {list(values)!r}],
    [java("test.password"), java("test.two")],
    b"SECRET" in Path(f"/proc/{{process.pid}}/cmdline").read_bytes(),
    sorted({{stat.S_IMODE(file.stat().st_mode) for file in files}}),
    session.range(3).count(),
]))
"""
    variables = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{given} {options} pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, env=variables
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == [list(values.values()), ["TOP-SECRET-4", r"a \ b"], False, [0o600], 3]


@pytest.mark.long
def test_a_start_says_nothing() -> None:
    """No warning on standard error; the second compiler gives way; Python ends together with its JVM.

    No thread asks the JVM from then on: a request to a JVM that is ending would be an error with its stack.
    """
    code = """
import atexit, os
from pathlib import Path
from connectors.spark.session import build_session
def let_go():  # as a thread of py4j's does at any time
    client.send_command = print
    client.garbage_collect_object("o1", enqueue=False)
atexit.register(let_go)  # the first is the last to run
session = build_session('quiet', cores=1)
client = session.sparkContext._gateway._gateway_client
niceness = {}
for thread in Path(f"/proc/{session.sparkContext._gateway.proc.pid}/task").glob("*"):  # none where there is no /proc
    try:
        niceness[(thread / "comm").read_text()[:2]] = os.getpriority(os.PRIO_PROCESS, int(thread.name))
    except OSError:
        pass  # threads come and go
assert not niceness or niceness["C2"] > niceness["C1"], niceness
session.stop()
"""
    # Java says that it was given options by the environment.
    variables = {name: value for name, value in os.environ.items() if name not in SHORT_LIVED}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, env=variables
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_jvm_that_does_not_start() -> None:
    """An error of one sentence, behind Java's own words."""
    code = """
from connectors.spark.session import build_session
from ordering.base.errors import EnvironmentProblem
try:
    build_session('none', driver_memory='1k')
except EnvironmentProblem as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout.endswith("Spark's JVM ended while it started (exit code 1).\n")
    assert "Traceback" not in done.stderr
