"""A sending member as a process of its own, to be killed: `sender.py BOOTSTRAP GROUP MEMBER OUTBOX|- PREFIX COUNT`.

Broadcasts PREFIX1 … PREFIXcount and then waits. Prints `accepted INCARNATION LOCAL_SEQNO PAYLOAD` when a broadcast
has returned, `ordered LOCAL_SEQNO SEQNO` when its receipt has an answer, and `all` when nothing is left.
"""

from __future__ import annotations

import sys
import threading

from connectors import Member, Receipt


def main(bootstrap_servers: str, group: str, address: str, outbox: str, prefix: str, count: str) -> None:
    member = Member(group, address, bootstrap_servers=bootstrap_servers, outbox=None if outbox == "-" else outbox)
    receipts: list[Receipt] = []
    for number in range(1, int(count) + 1):
        payload = f"{prefix}{number}"
        receipt = member.broadcast(payload.encode())
        receipts.append(receipt)
        print("accepted", receipt.message_id.incarnation, receipt.message_id.local_seqno, payload, flush=True)
    for receipt in receipts:
        print("ordered", receipt.message_id.local_seqno, receipt.result(), flush=True)
    member.wait_ordered()
    print("all", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
