"""Casts and letters between two sites, each with a secure Kafka: every role has the rights that `abcast acl` prints."""

from __future__ import annotations

import contextlib
import copy
import logging
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from connectors.kafka.connection.sites import Mode
from connectors.kafka.topics.rights import rights_of, rights_of_relay
from connectors.local.broker import EmbeddedBroker
from tests.client.casts.test_orders import texts
from tests.secure.two_kafkas import allow, both, sites_as
from tests.sites.world import World
from tests.waiting import WAIT

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(300)]

ORDERS: tuple[Literal["causal", "total", "fifo"], ...] = ("causal", "total", "fifo", "causal")


@pytest.mark.parametrize("mode", ["hub", "isis"])
def test_members_of_two_sites_answer_each_other(
    secure_broker: EmbeddedBroker,
    second_secure_broker: EmbeddedBroker,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mode: Mode,
) -> None:
    """Messages in all orders, and letters. No user lacks a needed right."""
    kafkas = {"nyc": secure_broker, "sfo": second_secure_broker}
    world = World(lambda: spark, sites_as("admin", kafkas, mode), tmp_path)

    def seen_by(role: str) -> World:
        """Return the same world for a user with the rights of that role at both sites."""
        user = f"{world.group}-{role}"
        rights = (
            [right for way in both(*kafkas) for right in rights_of_relay(world.sites, world.group, way)]
            if role == "relay"
            else [right for site in kafkas for right in rights_of(role, world.group, site)]  # type: ignore[arg-type]
        )
        allow(user, kafkas, set(rights))
        as_seen = copy.copy(world)
        as_seen.sites = sites_as(user, kafkas, mode)
        return as_seen

    deciding, members = seen_by("sequencer"), seen_by("member")
    with contextlib.ExitStack() as closing, caplog.at_level(logging.WARNING):
        closing.enter_context(
            world.running([deciding.sequencer(site) for site in kafkas if mode == "isis" or site == "nyc"])
        )
        closing.enter_context(world.running(seen_by("relay").relays()))
        members.change_settings("nyc", flush=True)
        alice, bob = (closing.enter_context(members.member(site, "m", casts=True)) for site in kafkas)
        for each in (alice, bob):
            each.connect(timeout=WAIT)
        streams = [each.deliveries(timeout=WAIT) for each in (alice, bob)]
        for number, order in enumerate(ORDERS):
            (alice, bob)[number % 2].broadcast(b"%d" % number, order=order)
            assert [texts(stream, 1) for stream in streams] == [[f"{order} {number}"]] * 2
        world.await_inboxes()
        for sender, receiver, site in ((alice, bob, "sfo"), (bob, alice, "nyc")):
            sender.send(f"{site}/m", b"letter").result(WAIT)
            assert next(iter(receiver.inbox(timeout=WAIT))).payload == b"letter"
        for each in (alice, bob):
            each.close(timeout=WAIT)
    assert [text for text in caplog.messages if "may not" in text] == []
