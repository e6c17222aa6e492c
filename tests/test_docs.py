"""The pages agree with the code: links, lists, limits, formats, the reading rule."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.core import TyperGroup

from connectors.diagnosis.status import GroupStatus
from connectors.kafka.codec import cast_codec, codec
from connectors.kafka.codec.dead_letter_codec import DEAD_LETTER_HEADER
from connectors.kafka.codec.headers import VERSION
from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import SUSPECT_AFTER_MS, read_sites
from connectors.kafka.topics import topics
from connectors.storage.settings import configured_storage
from jobs.cli import command
from jobs.terminal import options
from ordering.base import names, packs, records
from ordering.base.capacity import MAX_MEMBERS_BYTES, MAX_SENDERS_BYTES, NO_ROOM
from ordering.base.kinds import DECIDED_KINDS, FORWARD_KINDS, NEXT_KINDS, WITHOUT_SEQNO
from ordering.base.names import BY_RELAYS, ROLES, Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import EPOCH
from ordering.checker.anomalies import ANOMALIES
from ordering.membership.forgetting import MAX_NAMED
from ordering.membership.membership import MAX_LEFT, NOT_A_MEMBER
from ordering.sequencer import sequencer
from ordering.sequencer.sequencer import BAD_ADDRESS, FORGOTTEN
from ordering.sequencer.state import SNAPSHOTS
from tests.cli.here import abcast_here
from tests.papers import DOCS, PAGES, README, ROOT, SOURCE_FILES, anchors, doc, fences, prose, section, spans, tables

LONGEST_README = 200


def first_spans(table: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the texts in backticks of the first column."""
    return [span for row in table for span in spans(row[0])]


# --- links and names ---


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    """Every relative link leads to a file that is there, and to a heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(PAGES[page])):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(PAGES[path.relative_to(ROOT).as_posix()]), target


def test_the_readme_leads_to_every_page() -> None:
    assert len(README.splitlines()) <= LONGEST_README
    linked = set(re.findall(r"\]\((docs/\w+\.md)", README))
    assert linked == {path.relative_to(ROOT).as_posix() for path in DOCS}


def test_the_list_of_decisions_has_each() -> None:
    linked = re.findall(r"\]\((\d{4}[\w-]+\.md)", PAGES["docs/decisions/README.md"])
    assert linked == [path.name for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))]


def test_the_list_of_protocols_has_each() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)", PAGES["docs/protocols/README.md"])
    there = {path.name for path in (ROOT / "docs" / "protocols").glob("*.md")} - {"README.md"}
    assert len(linked) == len(set(linked))
    assert set(linked) == there


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named(page: str) -> None:
    """Each path of the repository in backticks exists."""
    for path in re.findall(r"`((?:ordering|connectors|jobs|tests|conf|docs)/[^`\s]*)`", PAGES[page]):
        assert any(ROOT.glob(path.rstrip("/"))), path


def test_what_contributors_are_told() -> None:
    """A name of the code that CONTRIBUTING gives beside a file is in that file."""
    page = PAGES["CONTRIBUTING.md"]
    told = 0
    for rule in re.split(r"\n(?=\d+\. |\n|#)", page):
        files = [ROOT / path for path in spans(rule) if re.fullmatch(r"[\w/]+\.py", path)]
        names = [
            name
            for name in spans(rule)
            if re.fullmatch(r"_?[A-Z_]{2,}|_?[A-Z][a-z]+|\w+_\w+|fold|outcome|refusal|step", name)
        ]
        for name in names if files else []:
            told += 1
            assert any(re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) for file in files), f"{name}: {rule}"
    assert told > 13


def test_make_targets() -> None:
    """The targets that the pages name exist."""
    blocks = "\n".join(block for page in PAGES.values() for block in fences(page, "sh"))
    named = set(re.findall(r"(?<![\w-])make ([a-z-]+)(?=[ `\n])", blocks + " ".join(PAGES.values())))
    assert {"demo", "test", "setup", "lint"} <= set(re.findall(r"make ([a-z-]+)", "".join(fences(README, "sh"))))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named & targets >= {"demo", "test", "setup", "lint", "bench", "simulate"}
    assert set(re.findall(r"`make ([a-z-]+)", " ".join(PAGES.values()))) <= targets


@pytest.mark.slow
def test_docstrings_cite_what_is_here() -> None:
    """A docstring's source is a heading of docs/sources.md or a page of docs/; no other paper is cited."""
    headings = re.findall(r"^## (.+)$", doc("sources"), re.MULTILINE)
    cited = set()
    for path in (*SOURCE_FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.txt"))):
        if path.name == "test_docs.py":
            continue
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"DESIGN\.md|HOUSE\.md|\b[A-Z]{4,}\.txt|seeds/\d", text), path
        for page in re.findall(r"docs/(?:\w+/)?[\w-]+\.md", text):
            assert page in PAGES, path
        for source in re.findall(r"^Source: (.+)", text, re.MULTILINE):
            known = [heading for heading in headings if source.startswith(f"{heading} (docs/sources.md)")]
            assert known or source.startswith("docs/"), f"{path}: {source}"
            cited.update(known)
    assert cited == set(headings)


def test_rooms() -> None:
    """The architecture has a line for each room, and no others."""
    [table] = tables(section(doc("architecture"), "## The rooms"))
    rooms = {path.parent.name for path in (ROOT / "connectors").glob("*/__init__.py")}
    tops = {"ordering/", "jobs/", "conf/", "tests/"}
    assert {spans(row[0])[0] for row in table} == tops | {f"connectors/{room}/" for room in rooms}


# --- records ---


def test_fields() -> None:
    """The tables of fields are the codec's, and in its order."""
    page = doc("records")
    for heading, fields in (
        ("## FORWARD: how to send", codec.FORWARD_FIELDS),
        ("## DATA: how to read", codec.DATA_FIELDS),
        ("## Letters", codec.LETTER_FIELDS),
        ("## Casts", ("2", *cast_codec.CAST_FIELDS[1:])),
        ("## A relay's topic", codec.COPIED_FIELDS[len(codec.FORWARD_FIELDS) :]),
    ):
        assert tuple(first_spans(tables(section(page, heading))[0])) == fields
    assert first_spans(tables(section(page, "## Dead letters"))[0]) == [DEAD_LETTER_HEADER]


def test_example_records() -> None:
    """The codec reads and writes the records on the page."""
    page = doc("records")
    forward, data = re.search(r"abcast: (2 .*)", page), re.search(r"^2 message .*$", page, re.MULTILINE)
    assert forward is not None
    assert data is not None
    source = records.Source("abcast.orders.forward.local", 0, 10)
    headers = [("abcast", forward[1].encode())]
    said = codec.decode_forward(source, b"local/carol", b"sell 50", headers, 1763856000133)
    assert isinstance(said, records.Forward)
    told = codec.decode_data(b"local/carol", b"sell 50", [("abcast", data[0].encode())])
    assert (told.id, told.source, told.forwarded_at_ms) == (said.id, source, said.timestamp_ms)
    _, _, epoch_headers = codec.encode_data(records.Data(EPOCH, 3))
    assert f"`{epoch_headers[0][1].decode()}`" in page


def test_kinds() -> None:
    """The two tables have each kind, and say which take a local seqno or a seqno."""
    forward, decided = tables(section(doc("records"), "## Kinds"))
    assert set(first_spans(forward)) == set(FORWARD_KINDS)
    assert {kind for row in forward for kind in spans(row[0]) if row[1].startswith("yes")} == NEXT_KINDS
    assert set(first_spans(decided)) == {*DECIDED_KINDS, records.REFUSED, records.MESSAGES, *WITHOUT_SEQNO}
    assert tuple(kind for row in decided for kind in spans(row[0]) if row[1] == "no") == WITHOUT_SEQNO


def test_reasons() -> None:
    """The reasons for a dead letter are the codec's, and in its order."""
    _, reasons = tables(section(doc("records"), "## Dead letters"))
    assert first_spans(reasons) == [
        codec.UNREAD,
        codec.REPEATED_HEADER,
        codec.RESERVED_HEADER,
        codec.WRONG_HEADER_NAME,
        codec.HEADERS_TOO_LARGE,
        codec.WRONG_VERSION,
        codec.WRONG_KIND,
        codec.NO_SENDER,
        codec.WRONG_INCARNATION,
        codec.WRONG_LOCAL_SEQNO,
        codec.WRONG_LOCAL_SEQNOS,
        codec.FUTURE_INCARNATION,
        codec.WRONG_LINK,
        codec.WRONG_SITE,
        codec.NOT_THE_RELAY,
        codec.RESERVED_NAME,
        codec.NO_PAYLOAD,
        codec.PAYLOAD_TOO_LARGE,
        packs.WRONG_COUNT,
        packs.PACK_TOO_LARGE,
        packs.WRONG_LAYOUT,
        packs.WRONG_LENGTHS,
        packs.PACK_HEADERS_TOO_LARGE,
        BAD_ADDRESS,
        packs.NO_PACKS,
        NOT_A_MEMBER,
        FORGOTTEN,
        NO_ROOM,
    ]


@dataclass(frozen=True)
class Row:
    """The fields that the reading rule needs."""

    epoch: int
    kind: str
    seqno: int
    count: int


kinds = st.sampled_from(["message", "message", "view", "later", EPOCH])
rows = st.builds(Row, st.integers(0, 3), kinds, st.integers(1, 6), st.sampled_from([1, 1, 1, 2, 3]))


@given(st.lists(rows, max_size=30))
def test_the_reading_rule(log: list[Row]) -> None:
    """The rule that is shown takes what `ordering.base.reader` takes."""
    [code] = fences(section(doc("records"), "### The reading rule"), "py")
    scope: dict[str, Callable[[list[Row]], Iterator[Row]]] = {}
    exec(code, {}, scope)
    reader = Reader()
    expected = [row for row in log if reader.accept(row.kind, row.epoch, row.seqno, row.count) is Verdict.TAKE]
    assert list(scope["taken"](log)) == expected


def test_python_that_is_not_run_is_python() -> None:
    blocks = [block for page in PAGES.values() for block in fences(page, "py")]
    assert blocks
    for block in blocks:
        compile(block, "block", "exec")


def test_delta_columns() -> None:
    """The columns and their types equal the tables'."""
    from connectors.ledger.casts.state import CASTS_SCHEMA
    from connectors.ledger.seqno_table import LEDGER_SCHEMA, VIEWS_SCHEMA

    shown = tables(section(doc("records"), "## Delta tables"))
    for table, schema in zip(shown, (LEDGER_SCHEMA, VIEWS_SCHEMA, CASTS_SCHEMA), strict=True):
        assert ", ".join(f"{spans(name)[0]} {kind.strip('`')}" for name, kind, _ in table) == schema


def test_formats() -> None:
    """The changelog names the formats that the code has."""
    newest = section(PAGES["CHANGELOG.md"], "## [Unreleased]")
    assert f"Version {VERSION}," in section(newest, "### Wire")
    assert f"Format {min(SNAPSHOTS)}." in section(newest, "### Snapshots")
    assert section(newest, "### Ledger").strip()


# --- commands and settings ---


@pytest.mark.parametrize("table", [section(README, "## Commands"), section(doc("operations"), "## Commands")])
def test_commands(table: str) -> None:
    """The table has all commands and no others."""
    named = set(re.findall(r"`abcast ([a-z-]+)", " ".join(row[0] for row in tables(table)[0])))
    assert named == set(command().commands)


def parameters(group: TyperGroup, path: str = "ABCAST") -> Iterator[str]:
    """Return the environment variables of all options."""
    for name, below in group.commands.items():
        prefix = f"{path}_{name.upper()}"
        for parameter in below.params:
            yield f"{prefix}_{str(parameter.name).upper()}"
            if isinstance(parameter.envvar, str):
                yield parameter.envvar
        if isinstance(below, TyperGroup):
            yield from parameters(below, prefix)


def test_variables() -> None:
    """Each environment variable that the pages name is an option's."""
    named = set(re.findall(r"ABCAST_[A-Z_]+", section(doc("configuration"), "## Where a setting comes from")))
    assert named - {
        *("ABCAST_COMMAND_OPTION", "ABCAST_CONFIG", "ABCAST_LOG_LEVEL", "ABCAST_LOG_FORMAT", "ABCAST_TRANSPORT"),
        *("ABCAST_CONTEXT", "ABCAST_STORAGE_"),
    } <= set(parameters(command()))
    for variable, file in (
        ("ABCAST_CONFIG", "connectors/kafka/login/configuration.py"),
        ("ABCAST_CONTEXT", "connectors/kafka/login/configuration.py"),
        ("ABCAST_LOG_LEVEL", "jobs/terminal/logs.py"),
        ("ABCAST_LOG_FORMAT", "jobs/terminal/logs.py"),
        ("ABCAST_TRANSPORT", "connectors/kafka/transport/__init__.py"),
        ("ABCAST_STORAGE_", "connectors/storage/settings.py"),
    ):
        assert f'"{variable}"' in (ROOT / file).read_text(encoding="utf-8")


def test_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a configuration file and of a sites' file are valid, with the values that they claim."""
    file = tmp_path / "abcast.toml"
    [described, agreeing], [configured, contexts] = fences(doc("sites"), "toml"), fences(doc("configuration"), "toml")
    file.write_text(described, encoding="utf-8")
    assert read_sites(file).home == "nyc"
    file.write_text(agreeing, encoding="utf-8")
    assert (read_sites(file).mode, read_sites(file).suspect_after_ms) == ("isis", SUSPECT_AFTER_MS)
    file.write_text(configured, encoding="utf-8")
    defaults = options.load_config(command(), file)
    assert defaults["topics"]["create"] == {"replication_factor": 3}
    monkeypatch.setenv("ABCAST_CONFIG", str(file))
    (tmp_path / "alice.password").write_text("secret")
    connection = ClientConfiguration().connection()
    assert configured_storage().endpoint == "https://s3.example.com:9000"
    assert connection.bootstrap_servers == "kafka-1:9093,kafka-2:9093"
    assert (connection.security.principal, connection.security.secret("password")) == ("User:alice", "secret")
    file.write_text(contexts, encoding="utf-8")
    assert ClientConfiguration().connection().bootstrap_servers == "127.0.0.1:9092"
    monkeypatch.setenv("ABCAST_CONTEXT", "prod")
    security = ClientConfiguration().security
    assert (security.protocol, security.ca_file) == ("SSL", str(tmp_path / "prod-ca.pem"))
    assert made_by_the_example(tmp_path, monkeypatch) == [("kafka-1:9093,kafka-2:9093", "orders", ["nyc"], 3)]


def made_by_the_example(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, list[str], int]]:
    """Run `abcast topics create` with abcast.toml; return the servers, groups, sites and copies of the topics."""
    made = []

    def create(connection: Connection, group: str, sites: list[str], _: int, copies: int) -> list[str]:
        made.append((connection.bootstrap_servers, group, sites, copies))
        return []

    monkeypatch.setattr(topics, "check_layout", lambda *_: None)
    monkeypatch.setattr(topics, "create_topics", create)
    done = abcast_here("--context", "prod", "topics", "create", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return made


def test_exit_codes() -> None:
    [table] = tables(section(doc("operations"), "## Exit codes"))
    codes = [0, options.EXIT_FAILED, options.EXIT_USAGE, options.EXIT_ANOMALY]
    assert [int(row[0]) for row in table] == codes


def test_topics() -> None:
    """Each topic of a group has a row, and each setting that a start asks for."""
    shown, settings = tables(section(doc("configuration"), "## Topics and settings"))
    named = [Topic.parse(re.sub("<[a-z]+>", "x", name)) for name in first_spans(shown)]
    assert [topic.role for topic in named if topic] == list(ROLES)
    every = [Topic("g", role, "s", "n" if role in BY_RELAYS else "") for role in ROLES]
    rules = {name for topic in every for name in topics._rules(topic)}
    assert set(first_spans(settings)) == rules
    said = {row[0]: row[1] for row in settings}
    assert f"{topics._MIN_FORWARD_RECORD_BYTES:,}" in said["`max.message.bytes`"]


def test_status_fields() -> None:
    [table] = tables(section(doc("monitoring"), "## Status"))
    assert set(GroupStatus._fields) <= set(first_spans(table))


def test_errors() -> None:
    """Every error that is raised on purpose has a row."""
    known = {"AbcastError"}
    classes = [
        re.findall(r"^class (\w+)\((\w+)\):", path.read_text(encoding="utf-8"), re.MULTILINE) for path in SOURCE_FILES
    ]
    for _ in range(3):  # a subclass may come before its base
        known |= {name for found in classes for name, base in found if base in known}
    [table] = tables(section(doc("troubleshooting"), "## Errors"))
    assert set(first_spans(row[:1] for row in table)) == known - {"AbcastError"}


# --- limits, terms, figures ---


def test_limits() -> None:
    """The limits it lists are those in the code."""
    from connectors.client.tail.go_back_n import resend_wait_s
    from connectors.client.values.sending_limits import SendingLimits
    from connectors.engine.group import IN_FLIGHT_BYTES
    from connectors.kafka.connection.backlog import BATCH_BYTES
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.log.acts import MAX_WHY
    from connectors.kafka.transport.librdkafka_producer import QUEUE_BYTES, QUEUE_RECORDS
    from connectors.ledger.table_job import TRIGGER_S
    from connectors.spark.job import JobOptions
    from ordering.sequencer.pipeline import DEPTH

    sending, mebibyte = SendingLimits(), 1024 * 1024
    job = {field.name: field.default for field in dataclasses.fields(JobOptions)}
    assert TRIGGER_S == 1
    first_s, *then_s = (resend_wait_s(sending.resend_after_s, resends) for resends in range(9))
    assert then_s == then_s[:1] * 8
    [table] = tables(section(doc("limits"), "## Limits"))
    shown = {row[0]: row[1] for row in table}
    assert shown == {
        "group name": f"{names.MAX_GROUP_LENGTH} characters",
        "site name, member name": f"{names.MAX_SITE_LENGTH}, {names.MAX_MEMBER_NAME_LENGTH} characters",
        "payload": f"{records.MAX_PAYLOAD_BYTES:,} bytes",
        "application headers of a message": f"{records.MAX_HEADERS_BYTES:,} bytes",
        "application headers of a pack, times its messages": f"{packs.MAX_PACK_HEADERS_BYTES:,} bytes",
        "incarnation, local seqno": f"{len(str(records.MAX_NUMBER))} digits",
        "a FORWARD record": f"{records.MAX_RECORD_BYTES // 2 // mebibyte} MiB",
        "a record as it is read, where a client has compressed it": f"{records.MAX_RECORD_BYTES // mebibyte} MiB",
        "a DATA record, a snapshot": f"{records.MAX_RECORD_BYTES // mebibyte} MiB",
        "senders of a group": f"{MAX_SENDERS_BYTES // mebibyte} MiB of names, and 32 bytes for each: 38,000 to 200,000",
        "members of a group": (
            f"{MAX_MEMBERS_BYTES // mebibyte} MiB of names, each twice, and 64 bytes for each: 6,000 to 20,000"
        ),
        "forward table (`max_pending_records`, `max_pending_bytes`)": (
            f"{sending.max_pending_records:,} messages, {sending.max_pending_bytes // mebibyte} MiB"
        ),
        "on the way to Kafka, with `confluent`": (
            f"{QUEUE_BYTES // mebibyte} MiB, {QUEUE_RECORDS:,} records: all members of a process on one connection"
        ),
        "first answer of a broker (`connect_timeout`)": f"{Connection().timeout:g} s",
        "resend (`resend_after_s`)": f"after {first_s:g} s without progress, then every {then_s[0]:g} s",
        "a micro-batch (`--max-batch-records`)": f"{job['max_batch_records']:,} records, all groups together",
        "a micro-batch of large records": (
            f"{BATCH_BYTES // mebibyte} MiB, by the average size of the records in their partitions"
        ),
        "in flight, with `--engine process`": (
            f"{DEPTH} batches of a group, or {IN_FLIGHT_BYTES // mebibyte} MiB of payload"
        ),
        "groups decided at once (`--parallelism`)": f"{job['parallelism'] or 'one a core'}, at most 64",
        "an operator's reason (`--why`)": f"{MAX_WHY} characters",
        "members that left, remembered": f"{MAX_LEFT:,}",
        "senders that one `forget` record names": f"{MAX_NAMED:,}",
        "records between two snapshots": (
            f"{sequencer.SNAPSHOT_EVERY_RECORDS:,}, or {sequencer.SNAPSHOT_RECORDS_PER_SENDER} a sender if that is more"
        ),
        "a Delta commit": "one a second at most",
    }


def test_glossary() -> None:
    """Each term has one row; the words that need one most are among them."""
    terms = [term for table in tables(doc("glossary")) for row in table for term in row[0].split(", ")]
    assert len(terms) == len(set(terms))
    needed = {"incarnation", "over", "stranger", "held", "shut", "seal", "claim", "floor", "note"}
    assert needed | {"link row", "origin row", "session", "shard", "view", "epoch", "own"} <= set(terms)


def test_anomalies() -> None:
    """README and glossary name the broken promises as the checker does."""
    for page in (README, doc("glossary")):
        assert set(ANOMALIES) <= set(spans(page))


def test_performance() -> None:
    """The page has each section's tables, and how both sides were warmed; figures need a command and a commit."""
    from tests.bench.figures import TABLES, WARMED
    from tests.bench.page import HEADING, figures
    from tests.bench.plan import SECTIONS
    from tests.bench.tables import NOT_MEASURED, NOT_RUN

    page = section(doc("performance"), HEADING.strip())
    assert list(WARMED) == list(dict.fromkeys(table.section for table in TABLES)) == list(SECTIONS)
    shown, unmeasured = (re.sub(r"\n+", "\n", text) for text in (page, figures({})))
    fixed = [
        line
        for line in unmeasured.splitlines()
        if NOT_MEASURED not in line and not line.startswith(("- Aim: ", "| --"))
    ]
    at = -1
    for line in fixed:
        at = shown.find(line, at + 1)
        assert at >= 0, line
    run = re.findall(r"^- (?:Command|Commit|Machine): (.+)$", page, re.MULTILINE)
    if shown.count(NOT_MEASURED) < len(TABLES):
        assert re.fullmatch(r"`make bench.*`", run[0])
        assert re.fullmatch(r"`[0-9a-f]{7,40}`", run[1])
    else:
        assert run == [NOT_RUN] * 3


def test_figures_of_a_run() -> None:
    """A run's figures fill its tables; all others are not measured, even if they had figures before.

    The terminal has the same tables, with a verdict on each aim, and none that were not measured.
    """
    from tests.bench import page, report
    from tests.bench.tables import NOT_MEASURED

    machine = {"commit": "0123abc", "cores": 2, "cpu": "a CPU", "memory": "8 GB", "python": "3.12.1"}
    rate = {"records_per_s": 123_456.0, "cpu_us_per_record": {"jvm": 3.0, "worker": 1.5, "broker": 9.0}}
    case = {"payload_bytes": 100, "senders": 1, "partitions": 4, "sequencer_to_copy": 0.514, "ledger_to_append": 0.85}
    first = {
        "throughput": [{**case, **dict.fromkeys(("copy", "sequencer", "append", "ledger"), rate)}],
        "views": {"failed": "TimeoutError: no view"},
        "state": {"failed": "OSError: no disk"},
    }
    second = {"relay": {"throughput": [], "latency": {"real-time": {"p50_ms": 6.2, "p99_ms": 20.0}}}}
    shown = page.filled(
        doc("performance"), {"command": "--only throughput,views", "machine": machine, "results": first}
    )

    def measured(text: str) -> list[tuple[str, ...]]:
        rows = [row for table in tables(section(text, page.HEADING.strip())) for row in table]
        return [row for row in rows if row[0] != NOT_MEASURED]

    row = ("100 B, 1 sender, 4 partitions", "123", "123", "0.51", "4.50", "123", "123", "0.85", "4.50")
    assert measured(shown) == [row]
    assert "- Aim: sequencer to copy ≥ 0.60: missed (0.51)\n- Aim: ledger to append ≥ 0.70: met (0.85)\n" in shown
    assert '- Command: `make bench ARGS="--only throughput,views"`\n- Commit: `0123abc`\n- Machine: 2 cores' in shown
    shown = page.filled(shown, {"command": "", "machine": machine, "results": second})
    assert measured(shown) == [("real-time", "6.20", "20")]

    def terminal(part: str, result: object) -> str:
        console = Console(file=io.StringIO(), record=True, width=200)
        report.show(console, part, result)
        return console.export_text()

    said, passed = terminal("throughput", first["throughput"]), terminal("relay", second["relay"])
    assert all(part in said for part in (*row, "sequencer to copy ≥ 0.60: missed (0.51)"))
    assert all(part in passed for part in ("real-time", "real-time: p50 ≤ 20: met (6.20)"))
    assert "news" not in passed
    assert "failed: TimeoutError: no view" in terminal("views", first["views"])


@pytest.mark.slow
def test_history_of_figures(tmp_path: Path) -> None:
    """A run's ratios come after the earlier ones; the gate names each that got worse."""
    from tests.bench import history

    known = history.load()
    assert all(run["ratios"] and set(run["ratios"]) <= set(history.RATIOS) for run in known)
    case = {"sequencer_to_copy": 0.4, "ledger_to_append": 0.9}
    results = {"throughput": [case, case], "latency": {"p50_ratio": 2.0}, "peers": {"failed": "no JDK"}}
    run = {"machine": {"commit": "0123abc"}, "started_at": "2026-01-02T03:04:05Z", "results": results}
    last = {"sequencer to copy": 0.8, "ledger to append": 0.95, "p50 of the sequencer to the copy's": 1.5}
    before = [{"commit": "fedcba9", "date": "2026-01-01", "ratios": last}]
    assert history.worse(before, results) == [
        "sequencer to copy: 0.40, 0.80 before",
        "p50 of the sequencer to the copy's: 2, 1.50 before",
    ]
    grown = history.with_run(history.with_run(before, run), run)
    assert [each["commit"] for each in grown] == ["fedcba9", "0123abc"]
    assert grown[-1]["ratios"] == {**last, "sequencer to copy": 0.4, "ledger to append": 0.9, list(last)[2]: 2.0}
    assert history.worse(grown, results) == []
    history.draw(grown, tmp_path / "history.svg")
    assert (tmp_path / "history.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_license() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Copyright 2025-2026 the abcast authors" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_papers_are_in_the_source_distribution() -> None:
    included = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.hatch.build.targets.sdist]")[2]
    for path in ("/docs", "/CHANGELOG.md", "/CONTRIBUTING.md"):
        assert f'"{path}"' in included.partition("]")[0]


# --- proofs ---


def test_each_mutation_has_its_row() -> None:
    """In the table of promises once, and in the table of seeds with its world, its rule and its anomaly."""
    from tests.simulator.simulations import SIMULATIONS

    worlds = {name: world.mutations for name, world in SIMULATIONS.items()}
    known = [f"{name}/{mutation.name}" for name, mutations in worlds.items() for mutation in mutations]
    [promises] = tables(section(doc("proofs"), "## Promises"))
    [faults] = tables(section(doc("proofs"), "## Faults of a kind"))
    [seeds] = tables(section(doc("proofs"), "## Seeds to find a mutation"))
    assert sorted(name for row in promises for name in spans(row[2])) == sorted(known)
    assert {name for row in faults for name in spans(row[1])} <= set(known)
    assert [row[:4] for row in seeds] == [
        (f"`{name}`", f"`{mutation.name}`", mutation.why, ", ".join(sorted(mutation.anomalies)))
        for name, mutations in worlds.items()
        for mutation in mutations
    ]


@pytest.mark.parametrize(("heading", "column"), [("## Promises", 3), ("## Faults of a kind", 2)])
def test_each_proof_is_in_its_file(heading: str, column: int) -> None:
    """A test is there under its name; a docstring has the invariant."""
    [rows] = tables(section(doc("proofs"), heading))
    for row in rows:
        found = re.findall(r"\[`(test_\w+)`\]\(\.\./(\S+)\)", row[column])
        assert found or row[column] == "none", row[0]
        for name, path in found:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"def {name}\(", text) or name == Path(path).stem, name
        if heading == "## Promises":
            [path] = re.findall(r"\]\(\.\./(\S+)\)", row[1])
            assert re.search(r'"""(?:(?!""").)*?[Ii]nvariant', (ROOT / path).read_text(encoding="utf-8"), re.DOTALL), (
                path
            )


def test_each_feature_has_its_row() -> None:
    from tests.simulator.features import FEATURES, short

    explained, pairs = tables(section(doc("proofs"), "## Pairs of features"))
    assert [tuple(row) for row in explained] == [(f"`{name}`", short(name), why) for name, why in FEATURES.items()]
    assert [row[0] for row in pairs] == [f"`{name}`" for name in FEATURES]
