"""What `headrace doctor` finds of ZooKeeper: asked with one of its four-letter words, before any library is loaded."""

import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace.client.waiting import in_background
from headrace.net.address import Address

from ..console import bad_input
from .machine import Finding, fail, ok, warn

_PREFIX: Final = "zookeeper://"
_DEFAULT_PORT: Final = 2181
_ASK_SECONDS: Final = 3.0
_SLOW_MS: Final = 100.0
_MOST_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """A ZooKeeper server, as it answers."""

    address: Address
    reason: str = ""
    """Why it cannot be reached; empty where it can."""
    mode: str = ""
    """`standalone`, `leader` or `follower`; empty where it does not say."""
    version: str = ""
    milliseconds: float = 0.0
    """That its answer took."""
    average_latency: float | None = None
    """Milliseconds that it takes for requests, by its own account."""
    is_without_quorum: bool = False
    """Whether it says that it serves nobody."""


def check_store(url: str, seconds: float = _ASK_SECONDS) -> Iterator[Finding]:
    """Each server, and whether there are enough of them; all are asked at the same time."""
    yield from assess_store(ask_servers(parse_servers(url), seconds))


def assess_store(states: list[ServerState]) -> Iterator[Finding]:
    """Judge what was asked."""
    yield from (assess_server(state) for state in states)
    yield assess_ensemble(states)


def ask_servers(addresses: Iterable[Address], seconds: float = _ASK_SECONDS) -> list[ServerState]:
    """How each of them is, within the seconds."""
    asked = [(address, in_background(partial(ask_server, address, seconds))) for address in addresses]
    deadline = time.monotonic() + seconds
    states = []
    for address, future in asked:
        try:
            states.append(future.result(max(deadline - time.monotonic(), 0.0)))
        except FutureTimeout:
            states.append(ServerState(address=address, reason="timed out"))
    return states


def parse_servers(url: str) -> list[Address]:
    """The servers in `zookeeper://h1:2181,h2/path`."""
    if not url.startswith(_PREFIX):
        raise bad_input(f"--store '{url}' does not look like zookeeper://HOST:PORT,HOST:PORT/PATH")
    addresses = []
    for part in url.removeprefix(_PREFIX).partition("/")[0].split(","):
        host, _, port = part.partition(":")
        if not host or (port and not (port.isascii() and port.isdigit() and int(port) <= 65535)):
            raise bad_input(f"--store '{url}': '{part}' is not HOST:PORT")
        addresses.append(Address(host, int(port or _DEFAULT_PORT)))
    return addresses


def ask_server(address: Address, seconds: float = _ASK_SECONDS) -> ServerState:
    """Ask for `srvr`, which every server answers unless it is told not to."""
    began = time.monotonic()
    answer = b""
    try:
        with socket.create_connection(address, seconds) as link:
            link.sendall(b"srvr")
            while (part := link.recv(4096)) and len(answer) < _MOST_BYTES:
                answer += part
    except TimeoutError:
        return ServerState(address=address, reason="timed out")
    except OSError as error:
        return ServerState(address=address, reason=(error.strerror or str(error)).lower())
    return read_answer(address, answer.decode(errors="replace"), (time.monotonic() - began) * 1000)


def read_answer(address: Address, answer: str, milliseconds: float) -> ServerState:
    """The state in what a server answered to `srvr`."""
    lines = [line.partition(": ") for line in answer.splitlines()]
    fields = {name: value for name, _, value in lines}
    return ServerState(
        address=address,
        mode=fields.get("Mode", ""),
        version=fields.get("Zookeeper version", "").partition("-")[0],
        milliseconds=milliseconds,
        average_latency=_average(fields.get("Latency min/avg/max", "")),
        is_without_quorum="not currently serving" in answer,
    )


def _average(latency: str) -> float | None:
    """Of `0/1.5/20`."""
    parts = latency.split("/")
    try:
        return float(parts[1])
    except (IndexError, ValueError):
        return None


def assess_server(state: ServerState) -> Finding:
    check = "zookeeper"
    if state.reason:
        return fail(check, f"{state.address}: {state.reason}", "start it, or take it out of --store")
    if state.is_without_quorum:
        advice = "it has no majority: start the other servers, and see that they reach each other"
        return fail(check, f"{state.address} serves nobody", advice)
    if not state.mode:
        advice = "it has no majority, or does not know the word: 4lw.commands.whitelist=srvr"
        return warn(check, f"{state.address} does not say how it is", advice)
    text = f"{state.address}, {state.mode}, {state.version}, {state.milliseconds:.0f} ms"
    if state.average_latency is not None:
        text += f", requests {state.average_latency:g} ms"
        if state.average_latency >= _SLOW_MS:
            return warn(check, text, "it is slow: give its transaction log a disk of its own, and it a quiet machine")
    return ok(check, text)


def assess_ensemble(states: Iterable[ServerState]) -> Finding:
    """Brokers can be without some of the servers, but not without most of them."""
    check = "store"
    known = list(states)
    serving = [state for state in known if not state.reason and not state.is_without_quorum]
    text = f"{len(serving)} of {len(known)} servers serve"
    if 2 * len(serving) <= len(known):
        return fail(check, text, "no broker can start, and none can take another's place; start the servers")
    if sum(state.mode in ("leader", "standalone") for state in serving) > 1:
        return fail(check, f"{text}, more than one of them on its own", "they are not one ensemble; see their server.N")
    if len(known) < 3:
        return warn(check, text, "its loss stops all changes in the cluster; three survive the loss of one")
    return ok(check, text)
