"""The files of conf/monitoring/ and the runbooks: names that exist, a section for each alert, alerts that fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.core import TyperCommand

from jobs.cli import command
from tests.cli.process import commands
from tests.diagnosis.test_monitor import named, named_of_members
from tests.papers import ROOT, doc, section, spans

DIRECTORY = ROOT / "conf" / "monitoring"
RULES = DIRECTORY / "abcast.rules.yml"
PROMTOOL = shutil.which("promtool")
HEADINGS = ("Meaning", "Look", "Do", "Undo")
OF_PROMETHEUS = {"up": ("job",)}
_RULE = re.compile(
    r" {6}- alert: (?P<name>\w+)\n {8}expr: (?P<expr>.+)\n(?: {8}for: (?P<wait>\d+m)\n)?"
    r" {8}labels: \{severity: (?P<severity>critical|warning)\}\n"
    r" {8}annotations: \{summary: \"(?P<summary>[^\"]+)\"\}\n"
)


class Alert(NamedTuple):
    """A rule. `wait`: for how long its expression must hold, "" for not at all."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str


def alerts() -> dict[str, Alert]:
    """Return the rules by name. The file has nothing else."""
    head, _, body = RULES.read_text(encoding="utf-8").partition("    rules:\n")
    assert re.fullmatch(r"(?:#.*\n)+groups:\n  - name: abcast\n", head)
    assert _RULE.sub("", body) == ""
    found = [Alert(*(part or "" for part in rule)) for rule in _RULE.findall(body)]
    return {alert.name: alert for alert in found}


def figures(expr: str) -> set[str]:
    """Return the metrics of an expression, without the ending of a histogram's series."""
    names = re.findall(r"\b(?:abcast_\w+|up)\b", re.sub(r"\"[^\"]*\"", "", expr))
    return {name.removesuffix("_bucket") for name in names}


def labels_of() -> dict[str, tuple[str, ...]]:
    return {**named(), **named_of_members(), **OF_PROMETHEUS}


@pytest.mark.parametrize("alert", alerts().values(), ids=alerts())
def test_an_alert_has_metrics_that_exist_and_a_runbook(alert: Alert) -> None:
    """Its metrics, or its `by`, have the labels that its summary names."""
    known, here = labels_of(), figures(alert.expr)
    assert here
    assert here <= known.keys()
    grouped = re.search(r"by \(([^)]*)\)", alert.expr)
    own = {"instance"}.union(*(known.get(name, ()) for name in here))
    labels = set(grouped[1].split(", ")) if grouped else own
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary)) <= labels <= own
    runbook = section(doc("runbooks"), f"## {alert.name}")
    assert tuple(re.findall(r"^- (\w+): \S", runbook, re.MULTILINE)) == HEADINGS


def test_the_runbooks_are_those_of_the_alerts() -> None:
    """In the same order; each command and option that they name exists."""
    assert re.findall(r"^## (\w+)$", doc("runbooks"), re.MULTILINE) == list(alerts())
    there: dict[tuple[str, ...], TyperCommand] = dict(commands(command()))
    told = [span.split() for span in spans(doc("runbooks")) if span.startswith("abcast ")]
    told += [line.split() for line in re.findall(r"^  (abcast .*)$", doc("runbooks"), re.MULTILINE)]
    assert len(told) > 20
    for _, *words in told:
        name = max((each for each in there if tuple(words[: len(each)]) == each), key=len, default=None)
        assert name is not None, words
        known = {option for parameter in there[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, words


def test_no_runbook_excludes_at_both_sides() -> None:
    """Each `abcast site exclude` has the rule of its page in front."""
    acts = [text for name in alerts() if "`abcast site exclude`" in (text := section(doc("runbooks"), f"## {name}"))]
    assert acts
    for text in acts:
        assert "- Do: **never exclude at both sides of a cut" in text.partition("`abcast site exclude`")[0]
    assert "Run it at one side of a cut only" in section(doc("sites"), "## ISIS")


def test_the_dashboard() -> None:
    """Each panel has metrics that exist, with labels that they have; no two overlap; each figure is somewhere."""
    dashboard = json.loads((DIRECTORY / "dashboard.json").read_text(encoding="utf-8"))
    known, shown = labels_of(), set[str]()
    for panel in dashboard["panels"]:
        assert set(re.findall(r"Abcast\w+", panel["description"])) <= alerts().keys()
        for target in panel["targets"]:
            here = figures(target["expr"])
            assert here
            assert here <= known.keys(), target
            labels = set.intersection(*({"instance", *known[name]} for name in here))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
            assert target["expr"].count("(") == target["expr"].count(")")
            shown |= here
    left_out = {
        *("abcast_sequencer_alive", "abcast_sign_age_seconds", "abcast_status_age_seconds", "abcast_duplicates"),
        *("abcast_agreement_waits", "abcast_member_resends_total", "abcast_member_delivered_seqno"),
    }
    assert shown == known.keys() - left_out - OF_PROMETHEUS.keys()
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (column, row)
        for place in places
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(column < 24 for column, _ in cells)


# --- with Prometheus' own tool ---

GROUP = '{group="g", site="nyc", instance="a:9464"}'
BESIDE = '{group="g", site="nyc", instance="b:9464"}'
FIRES = {
    "AbcastDown": ['up{job="abcast", instance="a:9464"} 0x20'],
    "AbcastNotReady": ['abcast_job_ready{part="ledger", instance="a:9464"} 0x20'],
    "AbcastStuck": [f"abcast_stuck{GROUP} 1x20", f"abcast_stuck{BESIDE} 0x20"],
    "AbcastSequencerSilent": [f"abcast_sequencer_silent_seconds{GROUP} 0 30 90+60x20"],
    "AbcastLeftOut": [f"abcast_left_out{GROUP} 1x20", f"abcast_left_out{BESIDE} 1x20"],
    "AbcastUnreadable": [f"abcast_group_readable{GROUP} 0x20"],
    "AbcastStatusUnknown": ['abcast_status_ok{instance="a:9464"} 0x20'],
    "AbcastTakeovers": [f"abcast_epoch{GROUP} 1x11 2 2 3 3 4 5x8"],
    "AbcastLagGrows": [f"abcast_forward_lag_records{GROUP} 0+500x20"],
    "AbcastOpenTransaction": [f"abcast_open_transaction_seconds{GROUP} 0+60x20"],
    "AbcastWritesRefused": [f"abcast_under_min_isr_partitions{GROUP} 1x20"],
    "AbcastReplicasBehind": [f"abcast_under_replicated_partitions{GROUP} 2x20"],
    "AbcastClocksDiffer": ['abcast_clock_difference_seconds{site="nyc", instance="a:9464"} 12x20'],
    "AbcastAgreementWaits": [f"abcast_agreement_waits{GROUP} 1x20"],
    "AbcastRelaySilent": [f'abcast_relay_silent_seconds{GROUP[:-1]}, from="sfo"}} 0+60x20'],
    "AbcastDeadLetters": [f"abcast_dead_letters{GROUP} 3x18 4 4 4"],
    "AbcastGap": [f"abcast_gaps{GROUP} 1x20"],
    "AbcastStrays": [f"abcast_strays{GROUP} 2x20"],
    "AbcastLedgerBehind": [f"abcast_ledger_lag_records{GROUP} 0+500x20"],
    "AbcastMemberFull": [f"abcast_member_pending{GROUP} 0+1000x20"],
}
"""Series, a value a minute, with which the alert fires in minute 20, once."""
HANDOVER = [
    'up{job="abcast", instance="a:9464"} 1x14 0 1x20',
    'abcast_job_ready{part="sequence", instance="a:9464"} 1x14 0 0 1x20',
    'abcast_status_ok{instance="a:9464"} 1x14 0 1x20',
    *(f"{name}{GROUP} 0x20" for name in ("abcast_left_out", "abcast_gaps", "abcast_strays", "abcast_dead_letters")),
    f"abcast_group_readable{GROUP} 1x20",
    f"abcast_stuck{GROUP} 0x14 1 0x20",
    f"abcast_sequencer_silent_seconds{GROUP} 0x14 12 0x20",
    f"abcast_epoch{GROUP} 4x15 5x20",
    f"abcast_under_replicated_partitions{GROUP} 0x13 3 3 3 0x20",
    'abcast_epoch{group="upgraded", site="nyc", instance="a:9464"} 4x14 5 5 6x20',
    'abcast_epoch{group="rolled", site="nyc", instance="a:9464"} 4x14 5 6 7x20',
    'abcast_epoch{group="planned", site="nyc", instance="a:9464"} 4x14 5 6 7 8 9x20',
    'abcast_handovers{group="planned", site="nyc", instance="a:9464"} 0x14 1 2 3 4 5x20',
    f"abcast_forward_lag_records{GROUP} 20x14 5000 4000 200 20x20",
    f"abcast_ledger_lag_records{GROUP} 100x14 5000 3000 100x20",
]
"""A sequencer is replaced by another one: it takes a minute, and a backlog comes of it.

An upgrade restarts it twice, and a rolling restart of a sequencer and two standbys has three takeovers.
"""


def case(series: list[str], expected: list[tuple[int, str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return a case of promtool's. `expected`: minute, name of the alert, and its alerts then."""
    given = [line.rpartition("} ") for line in series]
    return {
        "interval": "1m",
        "input_series": [{"series": f"{name}}}", "values": values} for name, _, values in given],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": fired} for minute, name, fired in expected
        ],
    }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)")
def test_alerts_fire_and_a_handover_fires_none(tmp_path: Path) -> None:
    """In promtool: each alert with the labels that its summary names, and no other alert of the same series."""
    assert FIRES.keys() == alerts().keys()
    known = alerts()
    cases = [case(HANDOVER, [(minute, name, []) for name in known for minute in range(14, 21)])]
    for name, series in FIRES.items():
        labels = dict(re.findall(r'(\w+)="([^"]+)"', series[0]))
        grouped = re.search(r"by \(([^)]*)\)", known[name].expr)
        kept = {key: labels[key] for key in (grouped[1].split(", ") if grouped else labels)}
        summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: kept[found[1]], known[name].summary)  # noqa: B023
        value = {
            "AbcastSequencerSilent": "19m 30s",
            "AbcastTakeovers": "4",
            "AbcastGap": "1",
            "AbcastWritesRefused": "1",
            "AbcastReplicasBehind": "2",
            "AbcastClocksDiffer": "12s",
            "AbcastMemberFull": "20000",
        }
        told = re.sub(r"\{\{ \$value.*? \}\}", value.get(name, ""), summary)
        fired = {"exp_labels": {**kept, "severity": known[name].severity}, "exp_annotations": {"summary": told}}
        cases.append(case(series, [(20, name, [fired])]))
    nobody = {
        "exp_labels": {"job": "abcast", "severity": "critical"},
        "exp_annotations": {"summary": "abcast  does not answer"},
    }
    cases.append(case([f"abcast_strays{GROUP} 0x20"], [(20, "AbcastDown", [nobody])]))
    file = tmp_path / "cases.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
