"""A client that counts casts wrongly: members end with an error that names it, and new ones go on."""

from __future__ import annotations

import contextlib
import time

import pytest

from connectors.client.tail import merged_log
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from ordering.base.errors import CastMissing, NotOrderedInTime
from ordering.base.records import Headers
from ordering.casts.casts import Depends
from ordering.casts.outgoing import Broadcast
from tests.client.members import forwarder_of, kill, with_casts
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.usefixtures("sequencer")


@pytest.mark.slow
@pytest.mark.parametrize("counts_its_own", [True, False], ids=["its own", "another's"])
def test_members_end_and_new_ones_go_on(
    connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch, counts_its_own: bool
) -> None:
    monkeypatch.setattr(merged_log, "STALL_S", 0.5)
    change_settings(connection, group, "nyc", flush=True, suspect_after_ms=2_500)
    with contextlib.ExitStack() as closing:
        liar, a, b = members = [with_casts(connection, group, name) for name in ("liar", "a", "b")]
        for each in members:
            closing.callback(kill, each)
            each.connect(timeout=WAIT)
        for number in range(3):
            a.broadcast(b"%d" % number, order="causal").result(WAIT)
        stream = b.deliveries(timeout=WAIT)
        assert [next(stream).payload for _ in range(3)] == [b"0", b"1", b"2"]

        caster = forwarder_of(liar)._send_queue.caster
        assert caster is not None
        outgoing = caster._outgoing
        stamp = outgoing._broadcast

        def stamp_wrongly(kind: str, payload: bytes, headers: Headers) -> Broadcast:
            clock = "9" if counts_its_own else ",4"
            return stamp(kind, payload, headers)._replace(depends=Depends(outgoing._receiver.view, clock))

        outgoing._broadcast = stamp_wrongly  # type: ignore[method-assign]
        receipt = liar.broadcast(b"lie")
        begun = time.monotonic()
        with pytest.raises(CastMissing, match="client of nyc/liar") as ended:
            list(stream)
        assert time.monotonic() - begun < WAIT / 2
        seqno = receipt.result(WAIT)
        assert f"from_seqno={seqno}" in str(ended.value)
        eventually(lambda: forwarder_of(a).has_ended)
        with pytest.raises(CastMissing):
            a.broadcast(b"in vain")

        anew = [closing.enter_context(with_casts(connection, group, name)) for name in ("a", "b")]
        for each in anew:
            with contextlib.suppress(NotOrderedInTime):
                each.connect(timeout=WAIT)
        anew[0].broadcast(b"cast", order="causal").result(WAIT)
        anew[0].broadcast(b"total").result(WAIT)
        for each in anew:
            seen = each.deliveries(timeout=WAIT)
            payloads = [next(seen).payload]
            while payloads[-1] != b"total":
                payloads.append(next(seen).payload)
            assert payloads[-2:] == [b"cast", b"total"]
        with with_casts(connection, group, "reader") as reader:
            later = reader.deliveries(from_seqno=seqno, timeout=WAIT)
            assert next(later).payload == b"lie"
