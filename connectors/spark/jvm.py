"""Spark's JVM, a child of this process, and the directory for temporary files of both.

Spark leaves blocks, jars, native libraries and sockets in the system's directory for temporary files, and a killed
Spark can't remove them. So each process that starts a JVM has a directory of its own there, with all these files.

Invariant: the directory exists as long as this process or its JVM lives, since both own it (see
`connectors.local.owned_directory`; the JVM may outlive this process for a while). After a clean end it is gone. After a
crash at any point the next process that makes such a directory removes it.

The JVM is started as by spark-submit, without two things: a first JVM that only computes the command, and
`--add-modules=jdk.incubator.vector`, which makes Java warn at every start, and which only linear algebra uses.

Under spark-submit the JVM is older than this process, and so are the files that spark-submit has made. Later files are
in this process's directory, unless spark-submit was given another.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway, JVMView
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from connectors.local.java import require_java
from connectors.local.owned_directory import OwnedDirectory
from connectors.local.properties import escaped
from connectors.local.scratch import make_scratch
from connectors.spark.submit_arguments import other_arguments
from ordering.base.errors import EnvironmentProblem

SUBMITTED = "PYSPARK_GATEWAY_PORT" in os.environ
"""Whether spark-submit runs this process, with a JVM that exists already."""

_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.base/java.{name}" for name in ("util", "util.concurrent", "util.concurrent.atomic")),
    *(f"java.base/{name}" for name in ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action")),
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""The options that Spark's launcher adds to each JVM, without the module for linear algebra."""

_PROPERTIES, _JAVA_OPTIONS = "spark.properties", "java.options"
"""Files in the scratch directory."""

_LOOK_EVERY_S = 0.02
_START_S = 120.0
_END_S = 10.0


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start Spark's JVM with these settings, unless this process has one already. Raises EnvironmentProblem."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no public way
        return
    java, scratch = require_java(), make_scratch()
    address = scratch.path / "gateway"
    settings = {**_below(scratch), **settings}
    write_settings(settings, scratch.path)
    process = _launch(java_command(java, settings, scratch.path), address, scratch.descriptor)
    port, secret = _answer(process, address)
    with _environment({"PYSPARK_GATEWAY_PORT": port, "PYSPARK_GATEWAY_SECRET": secret}):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]  # it connects to the one that these name
    gateway.proc = process
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - there is no public way
    # Registered before anything of pyspark, so called after it.
    atexit.register(_end, gateway, scratch)


def java_command(java: Path, settings: Mapping[str, str], scratch: Path) -> list[str]:
    """Return the command that starts Spark's JVM. `settings`: with memory, options and class path (`spark.driver.*`).

    A user's settings may be secret, and others see a command line: so the settings are in files (`write_settings`).
    """
    home = _spark_home()
    conf = os.environ.get("SPARK_CONF_DIR", str(home / "conf"))
    # Only the first logging binding, as Spark does. The archive of classes is valid for exactly this class path.
    logging_jars = map(str, (home / "jars").glob("slf4j-api-*.jar"))
    return [
        str(java),
        "-cp",
        os.pathsep.join([settings["spark.driver.extraClassPath"], conf, *logging_jars, str(home / "jars" / "*")]),
        f"-Xmx{settings['spark.driver.memory']}",
        *shlex.split(os.environ.get("SPARK_SUBMIT_OPTS", "")),
        f"@{scratch / _JAVA_OPTIONS}",
        *MODULE_OPTIONS,
        f"-Djava.io.tmpdir={scratch}",
        "org.apache.spark.deploy.SparkSubmit",
        "--properties-file",
        str(scratch / _PROPERTIES),
        *other_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
    ]


def write_settings(settings: Mapping[str, str], scratch: Path) -> None:
    """Write the files that `java_command` names, readable by this user alone."""
    options = shlex.split(settings["spark.driver.extraJavaOptions"])
    texts = {
        _JAVA_OPTIONS: "".join('"{}"\n'.format(word.replace("\\", "\\\\").replace('"', '\\"')) for word in options),
        _PROPERTIES: "".join(f"{escaped(name)}={escaped(value)}\n" for name, value in settings.items()),
    }
    for name, text in texts.items():
        with open(scratch / name, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _spark_home() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _launch(command: list[str], address: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start the JVM, which writes its port and a secret into the file `address`, and ends when its input ends."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(_spark_home()),
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address),
    }
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env=environment,
        pass_fds=(lock,),
        # Python handles Ctrl-C: the current batch needs the JVM.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def _answer(process: subprocess.Popen[bytes], address: Path) -> tuple[str, str]:
    """Wait for the JVM to come up; return its port and its secret. Raises EnvironmentProblem."""
    began = time.monotonic()
    while not address.exists():
        if process.poll() is not None:
            raise EnvironmentProblem(f"Spark's JVM ended while it started (exit code {process.returncode}).")
        if time.monotonic() - began > _START_S:
            process.kill()
            raise EnvironmentProblem(f"Spark's JVM has not come up in {_START_S:g} s.")
        time.sleep(_LOOK_EVERY_S)
    with address.open("rb") as file:  # renamed to this name when it was complete
        return str(read_int(file)), UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]


def join_jvm() -> None:
    """Connect to the JVM of spark-submit, unless this process has. Raises EnvironmentProblem."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no public way
        return
    SparkContext._ensure_initialized()  # noqa: SLF001 - there is no public way
    scratch = make_scratch()
    atexit.register(scratch.close)
    properties = SparkConf()
    system = jvm().java.lang.System
    system.setProperty("java.io.tmpdir", str(scratch.path))
    for name, value in _below(scratch).items():
        if not properties.contains(name):
            system.setProperty(name, value)


def jvm() -> JVMView:
    """Return the root of Java's names, in the JVM that was started or joined."""
    found = SparkContext._jvm  # noqa: SLF001 - there is no public way
    assert found is not None
    return found


def end_jvm(timeout_s: float) -> None:
    """End the JVM that `start_jvm` has started, as the end of the process would. Raises subprocess.TimeoutExpired."""
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout_s)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _below(scratch: OwnedDirectory) -> dict[str, str]:
    return {
        "spark.local.dir": str(scratch.path),
        "spark.python.unix.domain.socket.dir": str(scratch.path),
        "spark.sql.warehouse.dir": str(scratch.path / "warehouse"),
    }


def _end(gateway: JavaGateway, scratch: OwnedDirectory) -> None:
    """Wait for the JVM, which tidies up when its standard input ends. A JVM that does not end keeps its directory."""
    # A thread of py4j tells Java which objects Python has released, and complains when Java no longer answers.
    gateway._gateway_client.is_connected = False  # noqa: SLF001 - `shutdown` would end the JVM before it has tidied up
    with contextlib.suppress(OSError):
        gateway.proc.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(_END_S)
        scratch.close()
