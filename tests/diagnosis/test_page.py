"""The page of a job's port: it loads nothing from elsewhere, runs only its own script, and shows the status as text."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.diagnosis import monitor
from connectors.diagnosis.endpoint import Endpoint, HostPort
from connectors.diagnosis.forward_end import Gap
from connectors.diagnosis.latencies import Latency
from connectors.diagnosis.monitor import Monitor
from connectors.diagnosis.order_feed import OrderFeeds
from connectors.diagnosis.page import page
from connectors.diagnosis.status import Deleted, GroupStatus
from connectors.diagnosis.statuses import Statuses
from connectors.kafka.codec.dead_letter_codec import dead_letter_headers
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.log.acts import Act
from connectors.kafka.log.liveness import ALIVE, SILENT, Liveness
from connectors.testing.memory_group import MemoryGroup
from ordering.base.errors import BrokerUnreachable
from ordering.base.records import DeadLetter, Source
from tests.waiting import WAIT

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
HOSTILE = '<img src=x onerror="document.title=1">'


def policy() -> dict[str, list[str]]:
    """Return the sources of each directive."""
    return {name: sources for name, *sources in (part.split() for part in page().policy.split(";"))}


def body_of(tag: str) -> str:
    [body] = re.findall(rf"<{tag}>(.*?)</{tag}>", page().body, re.DOTALL)
    return str(body)


def test_the_policy_allows_this_script_and_no_other() -> None:
    """No source is unsafe or a host; a browser computes the same hashes of the served bytes."""
    assert policy()["default-src"] == policy()["frame-ancestors"] == policy()["form-action"] == ["'none'"]
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(body_of(tag).encode()).digest()).decode()
        assert policy()[f"{tag}-src"] == [f"'sha256-{digest}'"]
    assert policy()["connect-src"] == ["'self'"]
    assert not re.search(r"unsafe|https?:|\*", page().policy)


def test_nothing_comes_from_elsewhere() -> None:
    """No address of another host, and no attribute that the policy would refuse."""
    assert not re.search(r"https?:|[\"'(]//|@import|url\(", page().body)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page().body)) == {
        "data:,",
        *("/api/status", "/metrics", "/readyz", "/healthz"),
    }
    assert not re.search(r"\son\w+=|\sstyle=", page().body)


def test_text_is_never_read_as_html() -> None:
    """The script has no way to make HTML of a text, and asks for the status only, without changing anything."""
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function|DOMParser", body_of("script")
    )
    assert [each.split('"')[1] for each in re.findall(r"fetch\(([^,)]*)", body_of("script"))] == [
        *("/api/order?", "/api/status")
    ]
    assert not re.search(r"method|XMLHttpRequest|sendBeacon|WebSocket", body_of("script"))


@pytest.fixture
def address() -> Iterator[str]:
    """Serve a group that is well, one that is not and whose texts are hostile, and a site that can't be read."""
    well = GroupStatus(
        "well",
        Liveness(ALIVE, 0.0, "process", "vm", 7, 3, 1_764_000_000_000),
        *(12_345, 3, 5, 2, 4, 0, 1.5, 9, 6, {"sfo": 4.0}),
        ledger_lag=1_234,
        silences={"nyc/alice": 2.0, "nyc/bob": None},
        deleted=Deleted(5_000, 70, 1_764_000_000_000),
        acts=[Act("forget", HOSTILE, "bob@ops", "left", 1_764_000_000_000)],
    )
    wrong = well._replace(
        group="wrong", sequencer=Liveness(SILENT, 44.0), lag=17, gaps=[Gap(HOSTILE, 1, 3, 2)], trouble=HOSTILE
    )

    def away() -> Statuses:
        raise BrokerUnreachable("no broker answers.")

    found = Statuses([well, wrong], latencies={"well": Latency(7, 1_200, 50)})
    with MemoryGroup("well", "nyc") as group:
        feeds = OrderFeeds({"nyc": group.connection}, lambda _: True, payloads=True)
        watched = Monitor("nyc", {"nyc": lambda: found, "lon": away}, list, Troubles(), feeds)
        alice, bob = group.member("alice"), group.member("bob")
        for member in (alice, bob, alice):
            member.broadcast(HOSTILE.encode()).result(WAIT)
        dead = DeadLetter(Source("abcast.well.forward.nyc", 0, 9), HOSTILE)
        group.connection.producer().send(
            "abcast.well.dead-letter.nyc", key=b"\xff", headers=dead_letter_headers(dead, ())
        )
        with Endpoint(HostPort.parse(":0"), watched.answers()) as endpoint:
            yield f"http://{endpoint.place}"
        watched.close(monitor.ASKS_FOR_S)


@pytest.mark.slow
def test_it_is_served(address: str) -> None:
    with urllib.request.urlopen(f"{address}/", timeout=30) as answer:
        assert answer.read().decode() == page().body
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Content-Security-Policy"] == page().policy
    with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def rows_in(shown: str, table: str) -> list[list[str]]:
    """Return the texts in the rows of a table's body."""
    body = shown.partition(f'<tbody id="{table}">')[2].partition("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>")]
    return [list(map(html.unescape, row)) for row in rows if row]


def seen(address: str, tmp_path: Path) -> str:
    """Return the page's content as Chromium has it after five seconds."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'chromium'}"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", f"{address}/"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Content Security Policy" not in done.stderr
    return done.stdout.partition("<script>")[0]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian's package chromium-headless-shell)")
def test_in_a_browser(address: str, tmp_path: Path) -> None:
    """The figures of the status, the wrong group first; a hostile text is shown, letter by letter."""
    shown = seen(address, tmp_path)
    assert "<img" not in shown
    assert "<title>(4) abcast</title>" in shown
    wrong = [html.unescape(each) for each in re.findall(r"<li[^>]*>(.*?)</li>", shown)]
    assert wrong[0] == "lon: no broker answers."
    assert wrong[1].startswith("wrong: the group's sequencer has been silent for 44 s")
    assert wrong[2] == f"wrong: its job reports: {HOSTILE}"
    assert rows_in(shown, "groups") == [
        ["wrong", "nyc", "silent 44 s", "17", "0.0", "-", "12,345", "2", "6", "1,234"],
        ["well", "nyc", "alive", "0", "0.0", "7 · 1,200 ms", "12,345", "2", "6", "1,234"],
    ]
    assert [[*row[:4], row[5]] for row in rows_in(shown, "newest")] == [
        ["3", "nyc/alice", "2", "message", HOSTILE],
        ["2", "nyc/bob", "1", "message", HOSTILE],
        ["1", "nyc/alice", "1", "message", HOSTILE],
    ]
    assert [row[1:] for row in rows_in(shown, "letters")] == [["\ufffd", HOSTILE, "abcast.well.forward.nyc-0:9"]]
    lanes = shown.partition("<svg")[2].partition("</svg>")[0]
    marks = [re.findall(rf'{name}="([\d.]+)"', mark) for mark in re.findall(r"<rect.*?</rect>", lanes) for name in "xy"]
    assert marks[0] < marks[2] < marks[4]  # by seqno
    assert marks[1] == marks[5] != marks[3]  # by sender
    facts = html.unescape(shown)
    for fact in (
        "epoch 3, 2025-11-24 16:00:00 UTC, process, pid 7 on vm",
        "nyc/bob  not heard lately\nnyc/alice  heard 2 s ago",
        "sfo → nyc  4 s ago",
        "5,000 records of FORWARD\n70 records of DATA, last purged 2025-11-24 16:00:00 UTC",
        f"2025-11-24 16:00:00 UTC  forget by bob@ops: {HOSTILE} (left)",
    ):
        assert fact in facts
