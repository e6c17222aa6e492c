"""A planned handover under a real Prometheus. `test_runbooks` has each alert, and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.local.broker import EmbeddedBroker
from connectors.local.cluster import HOST, free_ports
from tests.monitoring.pipeline import Pipeline
from tests.monitoring.prometheus import PROMETHEUS, WHY_NOT_FIRED
from tests.waiting import eventually

STANDBY = ("sequence", "--standby", "--listen")


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(400)
@pytest.mark.skipif(PROMETHEUS is None, reason=WHY_NOT_FIRED)
def test_a_planned_handover_fires_nothing(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Two sequencers are restarted by turns, each at its port; then both are killed, and an alert fires.

    A minute of a rule takes ten seconds.
    """
    here = Pipeline(broker, tmp_path, "handover", "a")
    (group,) = here.groups
    ports = [f":{port}" for port in free_ports(HOST, 2)]
    try:
        here.watch(wait_s=10, range_s=10)
        prometheus = here.prometheus
        assert prometheus is not None
        first = here.start(*STANDBY, ports[0])
        second = here.start(*STANDBY, ports[1], says="This process waits")
        for place in ports:
            up = f'abcast_epoch{{instance="{HOST}{place}"}} == 1'
            eventually(lambda: prometheus.query(up), what="figures", pause=0.5)  # noqa: B023
        for job, place in ((first, ports[0]), (second, ports[1])):
            here.publish(group)
            assert job.terminate() == 0
            here.start(*STANDBY, place, says="This process waits")
            here.publish(group)
            here.heals(group)
        eventually(lambda: prometheus.query("changes(abcast_epoch[10m]) == 2"), what="the handovers", pause=0.5)
        assert prometheus.query('count_over_time(ALERTS{alertstate="firing"}[1h])') == []

        for job in here.jobs:
            job.end()
        here.fires("AbcastDown", group)
    finally:
        here.end()
