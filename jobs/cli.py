"""The `abcast` command: one subcommand a module."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from jobs.acl import app as acl
from jobs.broker import app as broker
from jobs.config import app as config
from jobs.deliver import deliver
from jobs.demo.demo import demo
from jobs.inspection.check import check
from jobs.inspection.dead_letters import app as dead_letters
from jobs.inspection.doctor import doctor
from jobs.inspection.members import app as members
from jobs.inspection.query import query
from jobs.inspection.status import status
from jobs.inspection.support import support
from jobs.inspection.top import top
from jobs.inspection.view import view
from jobs.isis import isis
from jobs.ledger import ledger
from jobs.maintain import maintain
from jobs.member.bench import bench
from jobs.member.flush import flush
from jobs.member.letters import inbox, send
from jobs.package import package
from jobs.publish import publish
from jobs.relay import relay
from jobs.restore import restore
from jobs.run import run
from jobs.sequence import sequence
from jobs.site import app as site
from jobs.takeover import takeover
from jobs.terminal.logs import use_format
from jobs.terminal.options import run_command, use_context
from jobs.topics import app as topics

app = typer.Typer(
    name="abcast",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options at 80 columns
    help="Atomic broadcast on Kafka, Spark and Delta: one order of events, delivered everywhere, kept queryable.\n\n"
    "First steps: `abcast demo`; then `abcast broker start`, `abcast topics create --group G`, `abcast run`, and in "
    "other terminals `abcast publish` and `abcast deliver`.\n\n"
    "ABCAST_* variables and ./abcast.toml (another file: ABCAST_CONFIG) can set options, too.\n\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 3 anomaly found.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"abcast {version('abcast')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            # ABCAST_VERSION may be a deployment's own variable.
            allow_from_autoenv=False,
            help="Show the version.",
        ),
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            callback=use_context,
            metavar="NAME",
            help="Take the table [contexts.NAME] of the configuration file before the rest of it.",
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format",
            callback=use_format,
            metavar="text|json",
            help="The form of the log's lines (text). JSON has time, level, message, job, site, group, epoch …",
        ),
    ] = None,
) -> None:
    """Read the options before a command."""


app.command()(run)
app.command()(demo)
app.add_typer(broker, name="broker")
app.add_typer(topics, name="topics")
app.add_typer(config, name="config")
app.add_typer(acl, name="acl")
app.add_typer(dead_letters, name="dead-letters")
app.command()(sequence)
app.command()(takeover)
app.command()(ledger)
app.command()(relay)
app.add_typer(site, name="site")
app.command()(restore)
app.command()(publish)
app.command()(deliver)
app.command()(send)
app.command()(inbox)
app.command()(flush)
app.command()(bench)
app.command()(check)
app.command()(doctor)
app.command()(support)
app.command()(query)
app.command()(status)
app.command()(top)
app.command()(view)
app.add_typer(members, name="members")
app.command()(isis)
app.command()(maintain)
app.command()(package)


def command() -> TyperGroup:
    """Return the whole of `abcast` as one command."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def main() -> None:
    """Run the `abcast` command: its entry point."""
    run_command(command())


if __name__ == "__main__":
    main()
