"""A member that casts until it is killed: `caster.py BOOTSTRAP GROUP MEMBER [OUTBOX FIRST]`.

It prints `in` once it is in a view. Every third message is total, the others causal and fifo. They are numbers, from
FIRST on; it prints each as it is accepted.
"""

from __future__ import annotations

import itertools
import sys
import time

from connectors import Member


def main(bootstrap_servers: str, group: str, address: str, outbox: str | None = None, first: str = "0") -> None:
    member = Member(group, address, bootstrap_servers=bootstrap_servers, casts=True, outbox=outbox)
    member.connect(timeout=60)
    print("in", flush=True)
    for number in itertools.count(int(first)):
        member.broadcast(b"%d" % number, order=("causal", "fifo", "total")[number % 3], timeout=60)
        print(number, flush=True)
        time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
