"""The options that the commands share, and the run of a command: configuration, errors, exit codes.

Sources of a value: the command line, else an ABCAST_* variable, else the context, else the rest of the configuration
file, else the default.
Exit codes: 0 success, 1 failure, 2 wrong usage, 3 anomaly found.
"""

from __future__ import annotations

import difflib
import importlib.util
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from connectors.kafka.login.configuration import CONTEXT_VARIABLE, ConfigurationFile, over
from connectors.kafka.login.defaults import DEFAULT_BOOTSTRAP_SERVERS as DEFAULT_BOOTSTRAP_SERVERS
from jobs.terminal import interruption
from jobs.terminal.logs import is_json, set_up_logging
from jobs.terminal.progress import waiting
from ordering.base.errors import AbcastError, UsageError
from ordering.base.names import check_site

if TYPE_CHECKING:
    from typer._click import Parameter  # typer's own copy of click

    from connectors.kafka.connection.connection import Connection

EXIT_FAILED, EXIT_USAGE, EXIT_ANOMALY = 1, 2, 3

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        envvar="ABCAST_BOOTSTRAP_SERVERS",
        help=f"Kafka brokers, HOST:PORT,… ({DEFAULT_BOOTSTRAP_SERVERS})",
    ),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        envvar="ABCAST_KAFKA_CONFIG",
        help="Login to Kafka: a properties file, as for Kafka's tools. See also [kafka] in abcast.toml.",
    ),
]
Site = Annotated[str, typer.Option("--site", envvar="ABCAST_SITE", callback=check_site, help="The site.")]


def check_sites(context: typer.Context, sites: list[str] | None) -> list[str] | None:
    """Return the names of sites, the callback of a repeatable --site. Raises UsageError for an invalid name."""
    one, own = "ABCAST_SITE", f"{context.auto_envvar_prefix}_SITE"
    if not sites and one in os.environ:
        raise UsageError(f"{one} is blank: name a site there, or unset it.")  # else delete would take all sites
    source = context.get_parameter_source("site")
    if (
        source is not None
        and source.name == "ENVIRONMENT"
        and len({os.environ.get(each) for each in (one, own)} - {None}) > 1
    ):
        raise UsageError(f"{one} and {own} differ: unset one of them, or name the site by --site.")
    for site in sites or ():
        check_site(site)
    return sites


SeveralSites = Annotated[
    list[str] | None,
    typer.Option("--site", envvar="ABCAST_SITE", callback=check_sites, help="A site of the group; repeat for more."),
]
if TYPE_CHECKING:
    from connectors.storage.location import Location as Location
else:
    Location = Path  # typer takes no union; what counts is `location`


def location(text: object) -> Location:
    """Parse a directory or a URL; a configuration file may have a value of any type. Raises UsageError."""
    from connectors.storage.location import parse_location

    if not isinstance(text, str | os.PathLike):
        raise UsageError(f"{text!r} is neither a directory nor a URL: write it in quotes.")
    return parse_location(text)


def new_directory(text: object) -> Path:
    """Parse the name of a directory to write to. Raises UsageError for one that can only be a mistake."""
    if not isinstance(text, str | os.PathLike) or not (name := os.fspath(text)) or not name.isprintable():
        raise UsageError(f"{text!r} is no name of a directory.")
    return Path(name)


Data = Annotated[
    Location,
    typer.Option(
        "--data",
        envvar="ABCAST_DATA",
        parser=location,
        metavar="DIR|URL",
        help="Place of the Delta tables: a directory, or s3a://, abfss://, gs://, hdfs://.",
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        "--work-dir",
        envvar="ABCAST_WORK_DIR",
        help="Directory of the jobs' checkpoints (--data, or abcast-work if that is a URL).",
    ),
]
Group = Annotated[str, typer.Option("--group", "-g", envvar="ABCAST_GROUP", help="The group.")]
Member = Annotated[str, typer.Option("--member", "-m", envvar="ABCAST_MEMBER", help="The member's address, SITE/NAME.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; `abcast status` shows it.")]
MaxBatchRecords = Annotated[
    int,
    typer.Option("--max-batch-records", min=1, help="The most records in a micro-batch; fewer if they are large."),
]
Parallelism = Annotated[
    int | None,
    typer.Option("--parallelism", min=1, max=64, help="The number of groups decided at the same time (one a core)."),
]

Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        envvar="ABCAST_GROUPS",
        help="Only groups with these names; patterns are allowed: 'orders,pay-*'. 1/4 is the first of four equal "
        "shares, by a hash of the names.",
    ),
]
LookEvery = Annotated[
    float,
    typer.Option(
        "--look-every-s", envvar="ABCAST_LOOK_EVERY_S", min=0.1, help="Seconds between two looks for new groups."
    ),
]

DEFAULT_DATA = Path("abcast-data")
OF_ALL = ("kafka", "storage")
"""Tables of the configuration file for logins, which belong to no command."""
_OF_KAFKA = ("bootstrap_servers", "kafka_config")
"""Keys of the file that `connectors.kafka.connection.client_configuration` reads, as it does for `Member`."""
_OF_JOBS = {
    "pyspark": "Spark",
    "py4j": "Spark",
    "delta": "Delta",
    "deltalake": "Delta",
    "duckdb": "DuckDB",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
}
"""The modules of the extra `jobs`, and their names for users."""
_OF_METRICS = {"prometheus_client": "prometheus-client"}
"""The same of the extra `metrics`."""


Command = TyperCommand | TyperGroup
_logger = logging.getLogger(__name__)


def load_config(command: TyperGroup, path: Path | None = None, *, is_script: bool = False) -> dict[str, Any]:
    """Return the configuration file as typer's default map. Raises UsageError for an unreadable file or unknown key.

    A key at the top (`bootstrap_servers = "…"`) is a default for every command that has the option; one in a table
    (`[publish]`, `[topics.create]`) for that command only. The same holds within the chosen context, which goes before
    the rest of the file. A script knows only its own options, so it does not check the keys outside its table.
    """
    file = ConfigurationFile(path)
    unknown: list[str] = []
    defaults: dict[str, Any] = {}
    for layer in file.layers:
        above = f"contexts.{file.context}." if layer is not file.layers[0] else ""
        defaults = over(defaults, _defaults_of(command, layer.values, above, unknown, is_script=is_script))
    for name, values in file.contexts.items():
        if name != file.context:
            _defaults_of(command, values, f"contexts.{name}.", unknown, is_script=is_script)
    if unknown:
        raise UsageError(f"the configuration file {file.path} has unknown keys: {', '.join(sorted(unknown))}.")
    return defaults


def use_context(context: typer.Context, name: str | None) -> None:
    """Take the defaults of the configuration file, and of its context `name`, also in child processes.

    This is the callback of `--context`. Raises UsageError.
    """
    if name is not None:
        os.environ[CONTEXT_VARIABLE] = name
    assert isinstance(context.command, TyperGroup)
    context.default_map = load_config(context.command)
    from connectors.kafka.login.security import SECRETS  # imported late: it needs pydantic

    file = ConfigurationFile()
    if os.environ.get("ABCAST_KAFKA_CONFIG") and "kafka" in file.contexts.get(file.context, {}):
        typer.echo(f"abcast: ABCAST_KAFKA_CONFIG goes before [kafka] of the context {file.context}", err=True)
    for key, value in file.contexts.get(file.context, {}).items():
        is_login = key in OF_ALL and isinstance(value, dict)
        for name in [f"{key}.{below}" for below in value] if is_login else [key]:
            # The servers have one variable, at the top of a context and in its table. A secret's text and file are one.
            of_kafka = name.replace("kafka.bootstrap_", "bootstrap_")
            whole = of_kafka.removesuffix("_file")
            forms = [whole, f"{whole}_file"] if is_login and whole.removeprefix("kafka.") in SECRETS else [of_kafka]
            for variable in (f"ABCAST_{form.replace('.', '_').upper()}" for form in forms):
                if os.environ.get(variable):
                    typer.echo(f"abcast: {variable} goes before {name} of the context {file.context}", err=True)


def _defaults_of(
    command: TyperGroup, values: Mapping[str, Any], above: str, unknown: list[str], *, is_script: bool
) -> dict[str, Any]:
    """Return the default map of the file, or of a context; add its other keys to `unknown`, each behind `above`."""
    shared = {key: value for key, value in values.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict) and key not in OF_ALL}
    names = _option_names(command)
    found = [key for key in shared if key not in names]
    shared = {key: value for key, value in shared.items() if key not in _OF_KAFKA}
    defaults = _defaults(command, shared, tables, "", found)
    if is_script:
        found = [key for key in found if key.split(".")[0] in command.commands]
    known = [*names, *_keys(command)] if found else []
    unknown += [f"{above}{key}{_meant(key, known)}" for key in found]
    return defaults


def connection_to(bootstrap_servers: str | None, kafka_config: Path | None, name: str) -> Connection:
    """Return the connection that was named, or is configured, for a client `abcast-<name>`. Raises UsageError."""
    from connectors.kafka.connection.client_configuration import ClientConfiguration

    connection = ClientConfiguration(bootstrap_servers, kafka_config).connection(client_id=f"abcast-{name}")
    return replace(connection, waiting=waiting)


def _option_names(command: Command) -> dict[str, str]:
    """Map each name that a file may give an option to its parameter; for a group, the names of its commands' options.

    A group's own options have no defaults in the file.
    """
    if isinstance(command, TyperGroup):
        return {name: value for below in command.commands.values() for name, value in _option_names(below).items()}  # type: ignore[arg-type]
    return {name: str(option.name) for option in command.params for name in (_own_name(option), str(option.name))}


def _own_name(option: Parameter) -> str:
    """Return an option's longest name, or an argument's name, as a file may have it."""
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def _keys(command: TyperGroup, above: str = "") -> list[str]:
    """Return all tables and keys of tables that a file may have."""
    found = []
    for name, below in command.commands.items():
        found.append(f"{above}{name}")
        if isinstance(below, TyperGroup):
            found += _keys(below, f"{above}{name}.")
        else:
            found += [f"{above}{name}.{option}" for option in _option_names(below)]  # type: ignore[arg-type]
    return found


def _meant(key: str, known: Sequence[str]) -> str:
    """Return a similar key of the same table, as a question; "" if there is none."""
    table, dot, name = key.replace("-", "_").rpartition(".")
    beside = sorted({each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == table})
    alike = difflib.get_close_matches(name, beside, 1, 0.7)
    return f" ({table}{dot}{alike[0]}?)" if alike else ""


def _defaults(
    command: Command, shared: Mapping[str, Any], table: Mapping[str, Any], name: str, unknown: list[str]
) -> dict[str, Any]:
    """Return the default map of a command. `table`: its part of the file; other keys there are added to `unknown`."""
    if not isinstance(command, TyperGroup):
        names = _option_names(command)
        unknown += [f"{name}{key}" for key in table if key not in names]
        several = {option.name for option in command.params if getattr(option, "multiple", False)}
        defaults = {**{key: value for key, value in shared.items() if key in names}, **table}
        by_parameter = {names.get(key, key): value for key, value in defaults.items()}
        # A key at the top is one value, also for commands that take several.
        return {
            name: [value] if name in several and isinstance(value, str) else value
            for name, value in by_parameter.items()
        }
    unknown += [f"{name}{key}" for key in table if key not in command.commands or not isinstance(table[key], dict)]
    return {
        key: _defaults(below, shared, table.get(key) or {}, f"{name}{key}.", unknown)  # type: ignore[arg-type]
        for key, below in command.commands.items()
        if isinstance(table.get(key, {}), dict)
    }


def run_command(command: TyperGroup, arguments: list[str] | None = None, *, is_script: bool = False) -> None:
    """Run a command line to its end and exit the process with the right code; no stack trace for a user's mistake."""
    try:
        interruption.raise_in_order()
        try:
            _let_through()
            set_up_logging()
            # Typer itself ends the process: 0, the code of typer.Exit, 2 for wrong usage, 130 after Ctrl-C, 1 when the
            # reader of the output (say, `head`) is gone.
            _take_variables(command)
            # Else the callback of --context loads it.
            config = load_config(command, is_script=True) if is_script else None
            line = arguments if is_script else _context_first(sys.argv[1:] if arguments is None else arguments)
            command.main(args=line, default_map=config, auto_envvar_prefix="ABCAST")
        finally:
            interruption.end_at_once()
    except (KeyboardInterrupt, SystemExit, Exception) as error:
        if interruption.has_come() and getattr(error, "code", EXIT_FAILED) not in (0, None):
            interruption.tell()
            from connectors.storage.location import is_asking

            if is_asking():  # Arrow would wait for a silent store at the end of the process
                interruption.leave()
            sys.exit(interruption.EXIT_INTERRUPTED)
        if not isinstance(error, Exception):
            raise
        sentence = _in_a_sentence(error)
        if sentence is None:
            raise
        _tell(sentence, EXIT_USAGE if isinstance(error, UsageError | ImportError) else EXIT_FAILED)


def _context_first(line: Sequence[str]) -> list[str]:
    """Return the command line with --context before the command, wherever it is."""
    end = line.index("--") if "--" in line else len(line)
    at = next((at for at, word in enumerate(line[:end]) if word.partition("=")[0] == "--context"), None)
    if at is None:
        return list(line)
    if line[at:] == ["--context"]:
        return ["--context"]  # its value is missing, which is told
    behind = at + (1 if "=" in line[at] else 2)
    return [*line[at:behind], *line[:at], *line[behind:]]


def _take_variables(command: TyperGroup) -> None:
    """Accept variables by an option's own name, which the help shows; warn of variables that nothing reads.

    Typer reads that of the parameter's name, too. A variable that begins with no command's name may be the deployment's
    own.
    """
    names: dict[str, str] = {}
    for option, by_option, by_parameter in _variables(command, "ABCAST"):
        names[by_option] = by_parameter
        if by_option == by_parameter:
            continue
        if option.envvar in (None, by_option):
            option.envvar = by_option
        elif by_option in os.environ:
            os.environ.setdefault(by_parameter, os.environ[by_option])
    known = {*names, *names.values()}
    commands = tuple(f"ABCAST_{name.upper().replace('-', '_')}_" for name in command.commands)
    for variable in sorted(os.environ):
        if variable.startswith(commands) and variable not in known:
            alike = difflib.get_close_matches(variable, names, 1, 0.7)
            typer.echo(f"abcast: nothing reads {variable}{f' ({alike[0]}?)' if alike else ''}", err=True)


def _variables(command: Command, above: str) -> Iterator[tuple[Parameter, str, str]]:
    """Yield each option with the variables that it may have: by its own name, and by its parameter's."""
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from _variables(below, f"{above}_{name.upper().replace('-', '_')}")  # type: ignore[arg-type]
        return
    for option in command.params:
        yield option, f"{above}_{_own_name(option).upper()}", f"{above}_{str(option.name).upper()}"


def _tell(sentence: str, code: int) -> NoReturn:
    if is_json():
        _logger.error("%s", sentence)
    else:
        typer.echo(f"abcast: {sentence}", err=True)
    sys.exit(code)


def _in_a_sentence(error: Exception) -> str | None:
    """Return the text of an error for a user; None for a bug of abcast, whose stack trace is worth more."""
    if isinstance(error, AbcastError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        missing = missing_extra(error)
        return missing and f"this command {missing}"
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}."
    kafka = sys.modules.get("kafka.errors")
    if kafka is not None and isinstance(error, kafka.KafkaError):
        return f"Kafka refuses: {getattr(error, 'description', '') or error} ({type(error).__name__})"
    return None


def _let_through() -> None:
    """Escape characters that a terminal's encoding lacks, instead of ending with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def require(module: str) -> None:
    """Check that a module of an extra is installed, before anything is started. Raises ModuleNotFoundError."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the end of a sentence on what to install, if an extra of abcast is missing; None for any other error."""
    for extra, modules in (("jobs", _OF_JOBS), ("metrics", _OF_METRICS)):
        if needed := modules.get((error.name or "").split(".")[0]):
            return f"needs {needed}: pip install 'abcast[{extra}]'."
    return None


def run_script(function: Callable[..., Any]) -> None:
    """Run one command's module as a script of its own (`spark-submit jobs/sequence.py`): the same options."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["--help", "-h"]}
    )
    app.command()(function)
    app.callback()(lambda: None)  # otherwise typer makes the only command the whole app, with other variables
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    run_command(group, [function.__name__, *sys.argv[1:]], is_script=True)
