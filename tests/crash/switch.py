"""A network of hosts on this machine, as a process: `switch.py NET NAME…`. `tests.crash.network` starts it.

Host 1, 2, … of the class C net NET is a network namespace of its own. The last NAME is this machine itself, so a test
reaches all hosts. Each host has a TUN device, and this process carries the packets between them. It needs neither
veth, a bridge nor netem, which kernels may lack. It prints one line a host, `NAME ADDRESS NAMESPACE`, then reads lines
of JSON from standard input: the faults from then on, each answered with `done`.

    cuts      pairs of hosts; packets between them vanish
    delay_ms  milliseconds by host, added to each packet that it sends or receives
    loss      percentage by host, of the packets that it sends or receives

Nothing is to be undone. When standard input ends, so does the process. Its devices and routes go with it, and each
namespace goes with its last process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from typing import NamedTuple

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI
_IPV4 = 4
_PACKET_BYTES = 65_536

_libc = ctypes.CDLL(None, use_errno=True)


class Host(NamedTuple):
    """A host. `namespace`: an open file of its network namespace."""

    name: str
    address: str
    device: int
    namespace: int


def hosts_of(net: str, names: list[str]) -> list[Host]:
    """Make the hosts, the last one in this process's own namespace."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    made = []
    for number, name in enumerate(names, 1):
        is_here = number == len(names)
        if not is_here:
            _checked(_libc.unshare(_NEW_NETWORK))
        address, label = f"{net}.{number}", f"tun{net.replace('.', '-')}" if is_here else "tun0"
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", label.encode(), _TUN_WITHOUT_HEADER))
        for command in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", label]):
            if not is_here or "lo" not in command:
                subprocess.run(["ip", *command], check=True)
        subprocess.run(["ip", "link", "set", label, "up"], check=True)
        made.append(Host(name, address, device, os.open("/proc/self/ns/net", os.O_RDONLY)))
        _checked(_libc.setns(here, _NEW_NETWORK))
    return made


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Switch:
    """Carries packets between hosts."""

    def __init__(self, hosts: list[Host]) -> None:
        self._by_device = {host.device: host for host in hosts}
        self._by_address = {bytes(map(int, host.address.split("."))): host for host in hosts}
        self._late: list[tuple[float, int, int, bytes]] = []
        """Delayed packets: when due, a number that keeps their order, the device, the packet."""
        self._numbers = itertools.count()
        self._chance = random.Random(1)
        self.set({})

    def set(self, faults: dict[str, object]) -> None:
        """Replace all faults by these."""
        self._cuts = {frozenset(pair) for pair in faults.get("cuts", ())}  # type: ignore[attr-defined]
        self._delay_ms = faults.get("delay_ms", {})
        self._loss = faults.get("loss", {})

    def run(self) -> None:
        """Carry packets until standard input ends."""
        poll = select.poll()
        for file in (0, *self._by_device):
            poll.register(file, select.POLLIN)
        while True:
            wait_ms = max(0.0, self._late[0][0] - time.monotonic()) * 1000 if self._late else None
            for file, _ in poll.poll(wait_ms):
                if file:
                    self._carry_all(self._by_device[file])
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                self.set(json.loads(line))
                print("done", flush=True)
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(self._late)
                _write(device, packet)

    def _carry_all(self, sender: Host) -> None:
        for _ in range(64):  # then the others, too
            try:
                packet = os.read(sender.device, _PACKET_BYTES)
            except BlockingIOError:
                return
            receiver = self._by_address.get(packet[16:20]) if packet[0] >> 4 == _IPV4 else None
            if receiver is not None:
                self._carry(sender.name, receiver, packet)

    def _carry(self, sender: str, receiver: Host, packet: bytes) -> None:
        if frozenset((sender, receiver.name)) in self._cuts:
            return
        ends = (sender, receiver.name)
        if any(self._chance.random() * 100 < self._loss.get(end, 0) for end in ends):  # type: ignore[attr-defined]
            return
        delay_ms = sum(self._delay_ms.get(end, 0) for end in ends)  # type: ignore[attr-defined]
        if delay_ms:
            due = time.monotonic() + delay_ms / 1000
            heapq.heappush(self._late, (due, next(self._numbers), receiver.device, packet))
        else:
            _write(receiver.device, packet)


def _write(device: int, packet: bytes) -> None:
    with contextlib.suppress(BlockingIOError):  # a full queue loses packets
        os.write(device, packet)


def main(net: str, *names: str) -> None:
    hosts = hosts_of(net, list(names))
    for host in hosts:
        print(host.name, host.address, f"/proc/{os.getpid()}/fd/{host.namespace}", flush=True)
    Switch(hosts).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
