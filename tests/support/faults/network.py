"""Machines of our own: network namespaces around a router whose links can be cut in silence, one way or both.

Needs root and Linux; `reason_not_to` says why it cannot be had. Whatever was made is removed when the lab is closed.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import permutations
from types import TracebackType
from typing import Self

from tests.support.process import Site
from tests.support.proxy import Relay

_FIRST_PREFERENCE = 100


def reason_not_to() -> str:
    """Why there can be no lab here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    name = f"hr{os.getpid()}x"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "no network namespaces can be made here"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Lab:
    """Nodes by their numbers, each with its own network; the test itself is node 0, ZooKeeper is `STORE`.

    A node's address is `10.x.<number>.2`. The store's is the test's second one, behind which a relay leads to
    ZooKeeper on loopback.
    """

    STORE = 99

    def __init__(self, nodes: Iterable[int]) -> None:
        self._name = f"hr{os.getpid() % 100_000}"
        self._net = f"10.{100 + os.getpid() % 100}"
        self._nodes = sorted(nodes)
        self._undo = ExitStack()
        self._cuts: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def address(self, node: int) -> str:
        return f"{self._net}.{node}.2"

    def site(self, node: int) -> Site:
        """Where a node's processes run."""
        return Site(self.address(node), ("ip", "netns", "exec", self._space(node)))

    def reach_store(self, servers: str) -> str:
        """Lead from the store's address to ZooKeeper's servers on loopback; the servers as nodes know them."""
        relays = []
        for server in servers.split(","):
            host, port = server.rsplit(":", 1)
            relay = self._undo.enter_context(Relay((self.address(self.STORE), 0), (host, int(port))))
            relays.append(f"{self.address(self.STORE)}:{relay.port}")
        return ",".join(relays)

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing that one node sends reaches the other any more, and nobody is told."""
        preference = _FIRST_PREFERENCE + len(self._cuts)
        self._cuts[sender, receiver] = preference
        self._rule("add", sender, receiver)

    def part(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Nothing goes between any of some nodes and any of the others."""
        others = list(others)
        for one in some:
            for other in others:
                for sender, receiver in permutations((one, other)):
                    self.cut(sender, receiver)

    def heal(self) -> None:
        """All links are as they were."""
        for sender, receiver in list(self._cuts):
            self._rule("del", sender, receiver)
            del self._cuts[sender, receiver]

    def _rule(self, verb: str, sender: int, receiver: int) -> None:
        ends = ["from", self.address(sender), "to", self.address(receiver)]
        preference = str(self._cuts[sender, receiver])
        self._in_router("ip", "rule", verb, *ends, "pref", preference, "blackhole")

    def _build(self) -> None:
        self._add_space(self._router)
        self._in_router("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._connect(0)
        _run("ip", "addr", "add", f"{self.address(self.STORE)}/32", "dev", f"{self._name}n0")
        self._in_router("ip", "route", "add", f"{self.address(self.STORE)}/32", "via", self.address(0))
        _run("ip", "route", "add", f"{self._net}.0.0/16", "via", f"{self._net}.0.1")
        for node in self._nodes:
            self._add_space(self._space(node))
            self._connect(node)
            self._in(self._space(node), "ip", "link", "set", "lo", "up")
            self._in(self._space(node), "ip", "route", "add", "default", "via", f"{self._net}.{node}.1")

    def _connect(self, node: int) -> None:
        """A link between a node and the router."""
        inner, outer = f"{self._name}n{node}", f"{self._name}r{node}"
        _run("ip", "link", "add", inner, "type", "veth", "peer", "name", outer, "netns", self._router)
        if node:
            _run("ip", "link", "set", inner, "netns", self._space(node))
        own = ["ip", "netns", "exec", self._space(node)] if node else []
        for command in (["addr", "add", f"{self.address(node)}/30", "dev", inner], ["link", "set", inner, "up"]):
            _run(*own, "ip", *command)
        self._in_router("ip", "addr", "add", f"{self._net}.{node}.1/30", "dev", outer)
        self._in_router("ip", "link", "set", outer, "up")

    def _add_space(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._undo.callback(subprocess.run, ["ip", "netns", "del", name], check=False)

    @property
    def _router(self) -> str:
        return f"{self._name}r"

    def _space(self, node: int) -> str:
        return f"{self._name}n{node}"

    def _in_router(self, *command: str) -> None:
        self._in(self._router, *command)

    def _in(self, space: str, *command: str) -> None:
        _run("ip", "netns", "exec", space, *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
