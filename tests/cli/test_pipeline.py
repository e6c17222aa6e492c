"""The commands against a running `abcast run`, and the jobs started by spark-submit."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.topics.topics import create_topics
from jobs.demo.demo import EARTHQUAKES
from ordering.base.names import Topic
from ordering.base.records import Data, Source
from ordering.sequencer.sequencer import seal
from tests import deployment
from tests.cli.conftest import SITE, Pipeline
from tests.cli.here import abcast_here
from tests.cli.process import BIN, ROOT, abcast, background
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


def test_topics(pipeline: Pipeline) -> None:
    """`create` makes the topics of each site once; `list` shows them, for programs too."""
    create = ("topics", "create", "--group", "cli.topics", "--site", SITE, "--site", "cli2", "--partitions", "3")
    names = [
        f"abcast.cli.topics.{role}.{site}"
        for site in (SITE, "cli2")
        for role in ("epoch", "dead-letter", "inbox", "memory", "cast", "data", "forward")
    ]
    assert pipeline.abcast(*create).stdout.splitlines() == [f"created {name}" for name in names]
    assert pipeline.abcast(*create).stdout == "all topics exist already\n"
    [again] = pipeline.json_lines(*create, "--closed")
    settings = {"closed": True}
    assert again == {"group": "cli.topics", "created": [], "settings": settings, "in_force": again["in_force"]}
    assert set(names) <= set(pipeline.abcast("topics", "list").stdout.split())
    assert {"topic": names[6], "group": "cli.topics", "role": "forward", "site": SITE} in pipeline.json_lines(
        "topics", "list"
    )


def test_the_health_check_of_the_image(pipeline: Pipeline) -> None:
    """The check asks for all groups, also for one that has just been created and that the sequencer has yet to find."""
    check = deployment.command("Dockerfile", "status")
    eventually(lambda: pipeline.abcast(*check).returncode == 0, what="all is well")


def test_a_group_is_created_as_it_is_deployed(pipeline: Pipeline) -> None:
    create = deployment.command("compose.yaml", "topics")
    done = pipeline.abcast(*create, "--site", "cli-deployed")
    assert (done.returncode, done.stdout.count("created abcast.orders.")) == (0, 7), done.stderr


def test_what_topics_create_does_not_change(pipeline: Pipeline) -> None:
    """A number of partitions or of copies that is not there is refused, not ignored; so are times that can't work."""
    group = pipeline.new_group("--partitions", "2")
    create = ("topics", "create", "--group", group, "--site", SITE)
    for options, said in (
        (("--partitions", "8"), f"abcast.{group}.forward.{SITE} has 2 partitions, not 8, and keeps that number"),
        (("--replication-factor", "2"), f"abcast.{group}.forward.{SITE} has 1 copy, not 2"),
        (("--suspect-after-ms", "1"), "greater than or equal to 3000"),
        (("--flush-timeout-ms", "1"), "greater than or equal to 1000"),
    ):
        done = pipeline.abcast(*create, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    assert pipeline.abcast(*create, "--partitions", "2").returncode == 0
    done = pipeline.abcast("topics", "create", "--group", "cli.copies", "--site", SITE, "--replication-factor", "3")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "take --replication-factor 1 or less" in done.stderr


def test_dead_letters_and_the_end_of_a_group(pipeline: Pipeline) -> None:
    """Dead letters can be inspected; a group is deleted with all its topics, and only on confirmation."""
    group = pipeline.new_group()
    of_group = ("--group", group)
    assert pipeline.abcast("dead-letters", "list", *of_group).stdout == f"no dead letters in group {group}\n"
    producer = pipeline.connection.producer()
    producer.send(str(Topic(group, "forward", SITE)), key=b"cli/mallory", value=b"\x1b[2J\xff", headers=[("a", b"b")])
    producer.close(timeout=WAIT)
    published = pipeline.abcast("publish", *of_group, "--member", f"{SITE}/alice", text=b"one\n")
    assert published.stdout == "1 message ordered, last seqno 1\n", published.stderr
    [row] = pipeline.json_lines("dead-letters", "list", *of_group)
    assert (row["offset"], row["sender"], row["source"]) == (0, "cli/mallory", f"abcast.{group}.forward.{SITE}-0:0")
    shown = pipeline.abcast("dead-letters", "show", "0", *of_group)
    assert f"reason      {row['reason']}" in shown.stdout
    assert "payload     base64:" in shown.stdout
    assert pipeline.abcast("dead-letters", "show", "7", *of_group).returncode == 2

    asked = pipeline.abcast("topics", "delete", *of_group)
    assert (asked.returncode, asked.stdout) == (2, "")
    [deleted] = pipeline.json_lines("topics", "delete", *of_group, "--yes")
    assert (deleted["group"], len(deleted["deleted"])) == (group, 7)
    assert group not in pipeline.abcast("topics", "list").stdout


def test_publish_says_how_far_it_came(pipeline: Pipeline, tmp_path: Path) -> None:
    """The command names a line that can't be sent; the lines before it are ordered."""
    group = pipeline.new_group()
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n" + b"x" * 2_000_000 + b"\nfour\n")
    done = pipeline.abcast("publish", "--group", group, "--member", f"{SITE}/alice", file)
    assert (done.returncode, done.stdout) == (2, "")
    *_, told, refused = done.stderr.splitlines()  # on a slow machine it also says that it waits
    assert told == "abcast: 2 messages ordered, last seqno 2"
    assert refused.startswith("abcast: line 3: the payload has 2000000 bytes, over the limit")


def test_from_publish_to_query(pipeline: Pipeline, tmp_path: Path) -> None:
    """Published lines come out in order, as text and as JSON, from the last position or any seqno; the checker,
    the status and the ledger agree.
    """
    group = pipeline.new_group("--partitions", "2")
    of_group = ("--group", group)
    published = pipeline.abcast("publish", *of_group, "--member", f"{SITE}/alice", text=b"one\r\n\n\xff\xfe\nlast")
    assert published.stdout == "4 messages ordered, last seqno 4\n", published.stderr
    file = tmp_path / "lines.txt"
    file.write_text("fünf\nsechs\n", encoding="utf-8")
    [summary] = pipeline.json_lines("publish", *of_group, "--member", f"{SITE}/bob", file)
    assert summary == {"group": group, "member": f"{SITE}/bob", "messages": 2, "last_seqno": 6}

    reader = ("deliver", *of_group, "--member", f"{SITE}/carol")
    rows = pipeline.json_lines(*reader, "--count", "6")
    assert [row["seqno"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [(row["sender"], row["local_seqno"]) for row in rows] == [
        *((f"{SITE}/alice", number) for number in (1, 2, 3, 4)),
        *((f"{SITE}/bob", number) for number in (1, 2)),
    ]
    assert [row.get("payload") for row in rows] == ["one", "", None, "last", "fünf", "sechs"]
    assert base64.b64decode(rows[2]["payload_base64"]) == b"\xff\xfe"
    assert set(rows[0]) == {"seqno", "sender", "incarnation", "local_seqno", "payload"}
    assert pipeline.json_lines(*reader, "--timeout", "1") == []  # carol has had them all
    assert pipeline.json_lines(*reader, "--from-seqno", "5", "--count", "1") == rows[4:5]
    marked = pipeline.abcast(*reader, "--from-seqno", "3", "--count", "1")
    assert marked.stdout == f"3\t{SITE}/alice\tbase64:{rows[2]['payload_base64']}\n"
    text = pipeline.abcast(*reader, "--from-seqno", "4", "--count", "2")
    assert text.stdout == f"4\t{SITE}/alice\tlast\n5\t{SITE}/bob\tfünf\n"

    pipeline.await_ledger(group, 6)
    log = tmp_path / "carol.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checked = pipeline.abcast("check", *of_group, "--site", SITE, "--deliveries", log, "--json")
    assert (checked.returncode, json.loads(checked.stdout)["ok"]) == (0, True), checked.stdout
    assert json.loads(checked.stdout)["read"] == {f"DATA of {SITE}": 6, "ledger": 6, "deliveries of carol.jsonl": 6}
    [state] = pipeline.json_lines("status", *of_group)
    assert (state["last_seqno"], state["dead_letters"]) == (6, 0)
    assert (state["members"], state["senders"]) == (0, 2)  # `publish` sends and does not join
    assert state["epoch"] >= 1
    assert (state["lag"], state["sequencer"]["state"], state["sequencer"]["engine"]) == (0, "alive", pipeline.engine)
    shown = pipeline.abcast("status", *of_group)
    assert f"{group}: engine {pipeline.engine}, pid " in shown.stdout
    assert state["ledger_lag"] == 0
    where = f"""WHERE group_name = '{group}' AND seqno > 4 ORDER BY seqno"""
    sql = f"SELECT seqno, text(payload) AS text FROM ledger {where}"
    assert pipeline.json_lines("query", sql) == [{"seqno": 5, "text": "fünf"}, {"seqno": 6, "text": "sechs"}]

    log.write_text(log.read_text().replace('"payload": "last"', '"payload": "lost"'))
    forged = pipeline.abcast("check", *of_group, "--site", SITE, "--deliveries", log)
    assert forged.returncode == 3
    assert "divergent: deliveries of carol.jsonl" in forged.stdout


def test_planted_anomaly(pipeline: Pipeline) -> None:
    """A DATA topic in which someone wrote by hand is found out: exit code 3, the anomaly's name and its seqno."""
    group = "cli.planted"
    create_topics(pipeline.connection, group, ["planted"])
    producer = pipeline.connection.producer()
    source = Source(str(Topic(group, "forward", "planted")), 0, 0)
    planted = [seal(1)]
    for seqno in (1, 3):
        planted.append(
            Data("message", 1, seqno, sender="planted/a", incarnation=1, local_seqno=seqno, payload=b"x", source=source)
        )
    for record in planted:
        key, value, headers = encode_data(record)
        producer.send(str(Topic(group, "data", "planted")), key=key, value=value, headers=headers)
    producer.close(timeout=WAIT)
    done = pipeline.abcast("check", "--group", group, "--site", "planted", "--json")
    assert done.returncode == 3
    verdict = json.loads(done.stdout)
    assert (verdict["ok"], [found["anomaly"] for found in verdict["anomalies"]]) == (False, ["gap"])
    assert verdict["anomalies"][0]["seqnos"] == [2]


@pytest.mark.long
def test_three_members(pipeline: Pipeline) -> None:
    """Three members broadcast real reports at the same time; all three deliver all of them in the same order."""
    group = pipeline.new_group("--partitions", "3")
    reports = EARTHQUAKES.read_bytes().splitlines()[:600]
    members = [Member(group, f"{SITE}/member-{number}", connection=pipeline.connection) for number in range(3)]
    try:
        receipts = [
            [member.broadcast(report) for report in reports[number::3]] for number, member in enumerate(members)
        ]
        seqnos = [receipt.result(timeout=150) for mine in receipts for receipt in mine]
        assert sorted(seqnos) == list(range(1, len(reports) + 1))
        delivered = []
        for member in members:
            runs = member.deliveries(from_seqno=1, timeout=WAIT)
            delivered.append([next(runs) for _ in reports])
    finally:
        for member in members:
            member.close()
    assert delivered[0] == delivered[1] == delivered[2]
    for number in range(3):
        own = [delivery.payload for delivery in delivered[0] if delivery.sender == f"{SITE}/member-{number}"]
        assert own == reports[number::3]
    pipeline.await_ledger(group, len(reports))
    assert pipeline.abcast("check", "--group", group, "--site", SITE).returncode == 0


@pytest.mark.long
def test_broker_commands(tmp_path: Path) -> None:
    """`start` leaves a broker behind that `status` sees and `stop` ends; each may be repeated."""
    directory = ("--dir", tmp_path / "kafka")
    try:
        started = abcast("broker", "start", "--port", "0", *directory, cwd=tmp_path)
        assert started.returncode == 0, started.stderr
        shown = abcast_here("broker", "status", "--json", *directory, cwd=tmp_path)
        status = json.loads(shown.stdout)
        assert (shown.returncode, status["running"]) == (0, True)
        assert started.stdout == f"running at {status['bootstrap_servers']}\n"
        again = abcast_here("broker", "start", *directory, cwd=tmp_path)
        assert again.stdout == f"was running already at {status['bootstrap_servers']}\n"
        told = json.loads(abcast_here("broker", "start", "--json", *directory, cwd=tmp_path).stdout)
        assert told == {"started": False, "bootstrap_servers": status["bootstrap_servers"], "logins": {}}
    finally:
        stopped = abcast_here("broker", "stop", "--json", *directory, cwd=tmp_path)
    assert json.loads(stopped.stdout) == {"stopped": True}
    assert abcast_here("broker", "stop", *directory, cwd=tmp_path).stdout == "was not running\n"
    assert abcast_here("broker", "status", *directory, cwd=tmp_path).returncode == 1


@pytest.mark.long
def test_spark_submit(pipeline: Pipeline, tmp_path: Path) -> None:
    """`spark-submit jobs/sequence.py` sequences with the same options, and SIGTERM stops it with exit code 0."""
    group, site = f"cli.submit-{pipeline.engine}", "submitted"
    create_topics(pipeline.connection, group, [site])
    (tmp_path / "abcast.toml").write_text(f'bootstrap_servers = "{pipeline.connection.bootstrap_servers}"\n')
    script = ROOT / "jobs" / "sequence.py"
    with background(BIN / "spark-submit", script, "--site", site, "--data", "data", cwd=tmp_path) as submitted:
        submitted.wait_for("ready")
        with Member(group, f"{site}/alice", connection=pipeline.connection) as alice:
            assert [alice.broadcast(b"x").result(timeout=150) for _ in range(3)] == [1, 2, 3]
        assert submitted.terminate() == 0, "".join(submitted.lines)
    assert "Traceback" not in "".join(submitted.lines)
