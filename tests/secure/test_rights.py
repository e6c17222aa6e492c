"""Each role works with the rights that `abcast acl` gives it, and can do nothing else."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.sites import Direction, read_sites
from connectors.kafka.topics.rights import Right, rights_beside, rights_of, rights_of_relay
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import KafkaRefused, UsageError
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, background
from tests.secure.users import login, login_file
from tests.waiting import WAIT

GROUP, SITE = "rights", "local"
SITES = 'home = "a"\n[sites.a]\nbootstrap_servers = "a:1"\n[sites.b]\nbootstrap_servers = "b:1"\n'


def give(broker: EmbeddedBroker, directory: Path, *roles: str, user: str = "") -> Path:
    """Give a user the rights of the roles; return the user's file."""
    user = user or roles[0]
    file = login_file(broker, user)
    for role in roles:
        done = abcast_here(
            *("acl", "apply", "-g", GROUP, "--role", role, "--principal", f"User:{user}", "--site", SITE),
            *("--kafka-config", login_file(broker, "admin")),
            cwd=directory,
        )
        assert done.returncode == 0, done.stderr
    return file


class TestPrint:
    """No broker is asked."""

    def test_the_commands(self, tmp_path: Path) -> None:
        asked = ("acl", "print", "-g", "orders", "--role", "observer", "--principal", "User:x", "--site", "nyc")
        done = abcast_here(*asked, "--bootstrap-servers", "k:1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        common = "kafka-acls --bootstrap-server k:1 --add --allow-principal User:x --operation"
        assert f"{common} Read --topic abcast.orders.data.nyc" in lines
        assert f"{common} Read --group abcast.member.orders.nyc. --resource-pattern-type prefixed" in lines
        assert not [line for line in lines if "Write" in line and "memory" not in line]
        rows = [json.loads(row) for row in abcast_here(*asked, "--json", cwd=tmp_path).stdout.splitlines()]
        assert len(rows) == len(lines)
        assert {row["principal"] for row in rows} == {"User:x"}

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--role", "member", "--principal", "x"), "'x' is no principal"),
            (("--role", "member", "--principal", "User:x", "--from", "a"), "are for --role relay"),
            (("--role", "relay", "--principal", "User:x"), "--from SITE and --to SITE"),
            (("--role", "relay", "--principal", "User:x", "--from", "a", "--to", "b"), "--sites FILE"),
        ],
    )
    def test_wrong_usage(self, arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
        done = abcast_here("acl", "print", "-g", "orders", *arguments, cwd=tmp_path)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr

    def test_a_relay_of_a_hub(self, tmp_path: Path) -> None:
        (tmp_path / "sites.toml").write_text(SITES)
        sites = read_sites(tmp_path / "sites.toml")
        out, back = (rights_of_relay(sites, "g", Direction(*ends)) for ends in (("a", "b"), ("b", "a")))
        assert Right("WRITE", "topic", "abcast.g.data.b") in out
        assert Right("WRITE", "topic", "abcast.g.data.a") not in out + back, "the home decides"
        assert Right("READ", "topic", "abcast.g.forward.b") in back
        assert Right("CREATE", "topic", "abcast.g.relayed-b.a") in back
        with pytest.raises(UsageError, match="share no link"):
            rights_of_relay(sites, "g", Direction("a", "a"))

    def test_a_relay_between_sites_that_agree(self, tmp_path: Path) -> None:
        """The relay copies FORWARD, and the log out of DATA; the site's job reads both."""
        (tmp_path / "sites.toml").write_text(SITES.replace('home = "a"', 'mode = "isis"'))
        rights = rights_of_relay(read_sites(tmp_path / "sites.toml"), "g", Direction("a", "b"))
        for read in ("forward.a", "data.a", "relayed-a.b", "entries-a.b"):
            assert Right("READ", "topic", f"abcast.g.{read}") in rights
        assert {right.name for right in rights if right.operation == "WRITE" and "inbox" not in right.name} == {
            "abcast.g.relayed-a.b",
            "abcast.g.entries-a.b",
            "abcast.g.cast.a",
        }
        assert Right("READ", "topic", "abcast.g.entries-", is_prefix=True) in rights_of("sequencer", "g", "b")

    def test_sites_that_agree_in_one_kafka(self, tmp_path: Path) -> None:
        """Each site reads the others' topics there; sites of a hub, or of another Kafka, do not."""
        file, one = tmp_path / "sites.toml", SITES.replace("b:1", "a:1")
        beside = {Right("READ", "topic", f"abcast.g.{role}.b") for role in ("forward", "data")}
        for text, expected in (
            (one.replace('home = "a"', 'mode = "isis"'), beside),
            (SITES.replace('home = "a"', 'mode = "isis"'), set()),
            (one, set()),
        ):
            file.write_text(text)
            assert set(rights_beside("sequencer", read_sites(file), "g", "a")) == expected

    def test_the_inboxes_of_a_relay(self, tmp_path: Path) -> None:
        """The relay has rights for the inboxes of the sites in its direction; none for one in the right Kafka
        already.
        """
        (tmp_path / "sites.toml").write_text(SITES)
        for shared, names in ((False, {"abcast.g.inbox.b"}), (True, set())):
            if shared:
                (tmp_path / "sites.toml").write_text(SITES.replace("b:1", "a:1"))
            rights = rights_of_relay(read_sites(tmp_path / "sites.toml"), "g", Direction("a", "b"))
            assert {right.name for right in rights if "inbox" in right.name} == names

    def test_copies_of_inboxes(self, tmp_path: Path) -> None:
        """A maintainer purges copies that only the site's relay reads; another role has no rights there."""
        file, copies = (
            tmp_path / "sites.toml",
            {Right(each, "topic", "abcast.g.inbox.b") for each in ("READ", "DELETE")},
        )
        for text, expected in ((SITES, copies), (SITES.replace("b:1", "a:1"), set())):
            file.write_text(text)
            assert set(rights_beside("maintainer", read_sites(file), "g", "a")) == expected
            assert not rights_beside("ledger", read_sites(file), "g", "a")

    def test_a_name_with_blanks(self) -> None:
        """A certificate has such a name. A shell takes the command as it is printed."""
        command = Right("READ", "topic", "t").command("User:CN=al,O=My Company", "k:1")
        assert "--allow-principal 'User:CN=al,O=My Company' --operation" in command

    def test_nobody_but_the_sequencer_writes_the_order(self) -> None:
        for who in ("member", "observer", "ledger"):
            written = {right.name for right in rights_of(who, "g", "s") if right.operation == "WRITE"}
            assert not written & {"abcast.g.data.s", "abcast.g.epoch.s", "abcast.g.dead-letter.s"}


@pytest.mark.broker
def test_an_open_broker_has_no_rights_to_give(broker: EmbeddedBroker, tmp_path: Path) -> None:
    asked = ("acl", "apply", "-g", "x", "--role", "member", "--principal", "User:x")
    done = abcast_here(*asked, "--bootstrap-servers", broker.bootstrap_servers, cwd=tmp_path)
    assert (done.returncode, "has no authorizer" in done.stderr) == (1, True), done.stderr


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_whole_pipeline(secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Sequencer, ledger, member and observer are users of their own."""
    create_topics(login(secure_broker), GROUP, [SITE])
    jobs, ledger = give(secure_broker, tmp_path, "sequencer"), give(secure_broker, tmp_path, "ledger")
    alice, bob = give(secure_broker, tmp_path, "member"), give(secure_broker, tmp_path, "observer")
    data = ("--data", tmp_path / "data")
    of_group = ("-g", GROUP, "-m")
    with (
        background(ABCAST, "sequence", "--kafka-config", jobs, *data, cwd=tmp_path) as sequencer,
        background(ABCAST, "ledger", "--kafka-config", ledger, *data, cwd=tmp_path) as writer,
    ):
        sequencer.wait_for("ready")
        writer.wait_for("ready")
        sent = abcast_here("publish", *of_group, "alice", "--kafka-config", alice, cwd=tmp_path, text=b"one\ntwo\n")
        assert sent.returncode == 0, sent.stderr + "".join(sequencer.lines)
        got = abcast_here("deliver", *of_group, "bob", "--count", "2", "--kafka-config", bob, cwd=tmp_path)
        assert [line.split("\t")[2] for line in got.stdout.splitlines()] == ["one", "two"], got.stderr
        again = abcast_here("deliver", *of_group, "bob", "--timeout", "1", "--kafka-config", bob, cwd=tmp_path)
        assert (again.returncode, again.stdout) == (0, ""), "its position was kept"
        assert not [line for line in (got.stderr + again.stderr).splitlines() if "WARNING" in line]
        with Member(GROUP, "carol", default_site=SITE, connection=login(secure_broker, "member")) as carol:
            carol.connect()
            carol.send("local/carol", b"note").result(timeout=WAIT)
            assert [next(iter(carol.inbox(timeout=WAIT))).payload] == [b"note"]
        for _ in itertools.takewhile(lambda _: not (tmp_path / "data" / "ledger" / "_delta_log").exists(), range(300)):
            time.sleep(0.2)
        checked = abcast_here("check", "-g", GROUP, "--kafka-config", bob, *data, cwd=tmp_path)
        assert (checked.returncode, "ledger" in checked.stdout) == (0, True), checked.stdout + checked.stderr
        for command, user in ((("view", "-g", GROUP), bob), (("status", "-g", GROUP, *data), jobs)):
            shown = abcast_here(*command, "--kafka-config", user, cwd=tmp_path)
            assert (shown.returncode, shown.stderr) == (0, ""), shown.stderr
        lines = "".join(sequencer.lines + writer.lines)
        assert "password=" not in lines
        assert sequencer.terminate() == writer.terminate() == 0, lines
    assert not [word for word in ("Authorization", "may not", "not checked", "Traceback") if word in lines], lines
    refused = abcast_here("publish", *of_group, "bob", "--kafka-config", bob, cwd=tmp_path, text=b"x\n")
    assert (refused.returncode, refused.stderr) == (
        1,
        "abcast: User:observer may not WRITE abcast.rights.forward.local: `abcast acl` gives each role the rights that "
        "it needs.\n",
    )
    with pytest.raises(KafkaRefused):
        create_topics(login(secure_broker, "sequencer"), "another", [SITE])


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_sites_that_agree(secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """In one Kafka, each site's job is a user of its own, and may not write the other's topics."""
    group, servers, sites = "agree", secure_broker.bootstrap_servers, tmp_path / "sites.toml"
    text = SITES.replace("a:1", servers).replace("b:1", servers)
    sites.write_text(text.replace('home = "a"', 'mode = "isis"'))
    create_topics(login(secure_broker), group, ["a", "b"])
    files = {}
    for site in ("a", "b"):
        for role in ("sequencer", "member"):
            user = f"{role}-of-{site}-in-{group}"
            files[role, site] = ("--kafka-config", login_file(secure_broker, user))
            done = abcast_here(
                *("acl", "apply", "-g", group, "--role", role, "--principal", f"User:{user}", "--site", site),
                *("--sites", sites, "--kafka-config", login_file(secure_broker, "admin"), "--json"),
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            given = [json.loads(line) for line in done.stdout.splitlines()]
            assert {right["principal"] for right in given} == {f"User:{user}"}
    decide = ("sequence", "--engine", "process", "--sites", sites, "--site")
    with (
        background(ABCAST, *decide, "a", "--data", tmp_path / "a", *files["sequencer", "a"], cwd=tmp_path) as at_a,
        background(ABCAST, *decide, "b", "--data", tmp_path / "b", *files["sequencer", "b"], cwd=tmp_path) as at_b,
    ):
        at_a.wait_for("ready")
        at_b.wait_for("ready")
        for site in ("a", "b"):
            publish = ("publish", "-g", group, "-m", f"{site}/bob", *files["member", site])
            sent = abcast_here(*publish, cwd=tmp_path, text=f"{site}\n".encode())
            assert sent.returncode == 0, sent.stderr + "".join(at_a.lines + at_b.lines)
        for site in ("a", "b"):
            deliver = ("deliver", "-g", group, "-m", f"{site}/ann", "--count", "2", *files["member", site])
            got = abcast_here(*deliver, cwd=tmp_path)
            assert [line.split("\t")[2] for line in got.stdout.splitlines()] == ["a", "b"], got.stderr
        assert at_a.terminate() == at_b.terminate() == 0
    lines = "".join(at_a.lines + at_b.lines)
    assert not [word for word in ("Authorization", "may not", "not checked", "Traceback") if word in lines], lines


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_sites(secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A hub in one Kafka: the relay of both directions is a user of its own, with rights for these two sites."""
    group, servers, sites = "two", secure_broker.bootstrap_servers, tmp_path / "sites.toml"
    sites.write_text(SITES.replace("a:1", servers).replace("b:1", servers))
    create_topics(login(secure_broker), group, ["a", "b"])
    asked = [
        *(("relay", "--from", *ends, "--sites", sites) for ends in (("a", "--to", "b"), ("b", "--to", "a"))),
        ("sequencer", "--site", "a"),
        ("member", "--site", "a", "--site", "b"),
    ]
    files = {}
    for who, *where in asked:
        user = f"{who}-of-two"
        files[who] = ("--kafka-config", login_file(secure_broker, user))
        done = abcast_here(
            *("acl", "apply", "-g", group, "--role", str(who), "--principal", f"User:{user}", *where),
            *("--kafka-config", login_file(secure_broker, "admin")),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
    data = ("--sites", sites, "--data", tmp_path / "data")
    decide = ("sequence", "--engine", "process", "--site", "a")
    with (
        background(ABCAST, *decide, *data, *files["sequencer"], cwd=tmp_path) as jobs,
        background(ABCAST, "relay", *data, *files["relay"], cwd=tmp_path) as relay,
    ):
        jobs.wait_for("ready")
        relay.wait_for("ready")
        for name in ("b/bob", "a/alice"):
            sent = abcast_here(
                "publish", "-g", group, "-m", name, *files["member"], cwd=tmp_path, text=f"{name}\n".encode()
            )
            assert sent.returncode == 0, sent.stderr + "".join(jobs.lines + relay.lines)
        for name in ("a/ann", "b/ben"):
            got = abcast_here("deliver", "-g", group, "-m", name, "--count", "2", *files["member"], cwd=tmp_path)
            assert [line.split("\t")[2] for line in got.stdout.splitlines()] == ["b/bob", "a/alice"], got.stderr
        checked = abcast_here("check", "-g", group, "--sites", sites, *files["member"], cwd=tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert relay.terminate() == jobs.terminate() == 0
    lines = "".join(jobs.lines + relay.lines)
    assert not [word for word in ("Authorization", "may not", "not checked", "Traceback") if word in lines], lines


@pytest.mark.broker
class TestDoctor:
    def test_everything_is_told(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        """The user gets the same answer as the administrator: topics and rights are in order, and no sequencer runs."""
        create_topics(login(secure_broker), "ill", [SITE])
        admin = ("--kafka-config", login_file(secure_broker, "admin"))
        done = abcast_here("doctor", "-g", "ill", *admin, cwd=tmp_path)
        marks = {line[2:].split(" of ")[0].split(":")[0]: line[0] for line in done.stdout.splitlines()}
        assert marks == {
            **dict.fromkeys(("library", "name", "TCP", "TLS", "login", "topics", "rights in ill", "settings"), "✓"),
            "transactions in ill": "✓",
            "sequencer": "✗",
            "ledger": "-",
        }, done.stdout + done.stderr
        assert done.returncode == 1
        assert "start `abcast run`" in done.stdout
        rows = [
            json.loads(row)
            for row in abcast_here("doctor", "-g", "ill", *admin, "--json", cwd=tmp_path).stdout.splitlines()
        ]
        assert [row["ok"] for row in rows if row["check"].startswith("sequencer")] == [False]

    def test_what_a_user_lacks(self, secure_broker: EmbeddedBroker, tmp_path: Path) -> None:
        create_topics(login(secure_broker), GROUP, [SITE])
        observer = give(secure_broker, tmp_path, "observer")
        done = abcast_here("doctor", "-g", GROUP, "--kafka-config", observer, cwd=tmp_path)
        assert f"✗ rights in {GROUP}: User:observer may not READ abcast.{GROUP}.forward.{SITE}" in done.stdout, (
            done.stdout
        )
        assert (
            f"`abcast acl apply --group {GROUP} --site {SITE} --role member --principal User:observer`" in done.stdout
        )
        done = abcast_here("doctor", "-g", GROUP, "--role", "observer", "--kafka-config", observer, cwd=tmp_path)
        assert f"✓ rights in {GROUP}: those of a observer" in done.stdout

    def test_nobody_is_there(self, tmp_path: Path) -> None:
        done = abcast_here("doctor", "--bootstrap-servers", "127.0.0.1:1", cwd=tmp_path)
        assert done.returncode == 1
        assert "✗ TCP of 127.0.0.1:1: 127.0.0.1:1 does not answer" in done.stdout
