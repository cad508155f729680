"""A network inside one process, in virtual time: hosts by name, links that can be cut, slowed and tampered with.

    network = SimulatedNetwork(seed=7)
    one, two = network.host("b1"), network.host("b2")      # each is a `Network` for what runs there
    network.cut("b1", "b2")                                # nothing passes, nobody is told; `heal` lets it through
    network.cut("b1", "b2", both_ways=False)               # only from b1 to b2
    network.delay("b1", "b2", 0.2)                         # from b1 to b2
    held = network.hold(ApiKey.END_TXN)                    # such requests wait on their way until held.release()
    network.lose_answer(ApiKey.PRODUCE, asker="c1")        # the next answer: the connection breaks in its place
    one.kill(); two.pause(); two.resume()

What is sent while a link is cut arrives when it is healed, as TCP has it, unless the connection was given up before.
Everything is drawn from the seed: the same seed gives the same run.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

from headrace.net.network import Link
from headrace.net.tcp import TcpLink

from .loop import Process, VirtualLoop
from .sockets import Fate, Pipe, SimulatedAcceptor, SimulatedSocket

FASTEST: Final = 0.000_2
SLOWEST: Final = 0.001
"""Seconds that a frame takes, one way, unless delayed."""
KEEPALIVE_SECONDS: Final = 25.0
"""How long it takes a system to notice that the machine at the other end is gone."""
_FIRST_PORT: Final = 30_000
_REQUEST_HEAD: Final = Struct(">ihhi")
_ANSWER_HEAD: Final = Struct(">ii")
_NO_API: Final = -1

T = TypeVar("T")


class Passed(NamedTuple):
    """A frame that has got to where it was sent."""

    at: float
    source: str
    target: str
    api_key: int
    is_answer: bool
    size: int


@dataclass(slots=True, eq=False)
class FrameRule:
    """Which frames a fault is about; None matches all."""

    api_key: int | None
    asker: str | None
    answerer: str | None

    def matches(self, api_key: int, asker: str, answerer: str) -> bool:
        return self.api_key in (None, api_key) and self.asker in (None, asker) and self.answerer in (None, answerer)


@dataclass(slots=True, eq=False)
class Hold:
    """Requests that wait on their way."""

    network: "SimulatedNetwork"
    rule: FrameRule
    count: int = 0
    """How many were caught so far."""
    is_released: bool = False
    _caught: asyncio.Event = field(default_factory=asyncio.Event)

    async def caught(self, count: int = 1) -> None:
        """Waits until so many were caught."""
        while self.count < count:
            self._caught.clear()
            await self._caught.wait()

    def catch(self) -> None:
        self.count += 1
        self._caught.set()

    def release(self) -> None:
        """Let them go on, and catch no more."""
        self.is_released = True
        self.network.forget(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one frame."""

    api_key: int
    holds: tuple[Hold, ...] = ()
    is_lost: bool = False

    @property
    def is_held(self) -> bool:
        return bool(self.holds) and any(not hold.is_released for hold in self.holds)


class Connected:
    """What the network knows of one connection: who asks, who answers, what was asked."""

    def __init__(self, network: "SimulatedNetwork", asker: str, answerer: str) -> None:
        self.network = network
        self.asker = asker
        self.answerer = answerer
        self.requests: dict[int, int] = {}
        """API keys by correlation ids."""


class _Way:
    """One direction of a connection. Implements `sockets.Route`."""

    def __init__(self, connected: Connected, *, is_answer: bool) -> None:
        ends = (connected.asker, connected.answerer)
        self._connected = connected
        self._network = connected.network
        self._is_answer = is_answer
        self.source, self.target = reversed(ends) if is_answer else ends

    def arrival(self) -> float:
        return self._network.arrival(self.source, self.target)

    def is_open(self) -> bool:
        return self._network.is_open(self.source, self.target)

    def sent(self, frame: bytes) -> Verdict:
        connected = self._connected
        if self._is_answer:
            return self._network.verdict_on_answer(self._answered(frame), connected.asker, connected.answerer)
        return self._network.verdict_on_request(self._api_key(frame), connected.asker, connected.answerer)

    def delivered(self, size: int, fate: Fate) -> None:
        assert isinstance(fate, Verdict)
        at = self._network.loop.time()
        self._network.passed.append(Passed(at, self.source, self.target, fate.api_key, self._is_answer, size))
        if self._is_answer:
            self._network.answered(fate.api_key, self.target, self.source)

    def _api_key(self, frame: bytes) -> int:
        if len(frame) < _REQUEST_HEAD.size:
            return _NO_API
        _, api_key, _, correlation_id = _REQUEST_HEAD.unpack_from(frame)
        self._connected.requests[correlation_id] = api_key
        return int(api_key)

    def _answered(self, frame: bytes) -> int:
        if len(frame) < _ANSWER_HEAD.size:
            return _NO_API
        return self._connected.requests.pop(_ANSWER_HEAD.unpack_from(frame)[1], _NO_API)


class SimulatedNetwork:
    """All hosts, and what is between them."""

    def __init__(self, seed: int = 0, *, loop: VirtualLoop | None = None) -> None:
        running = loop or asyncio.get_running_loop()
        assert isinstance(running, VirtualLoop), "a simulated network needs a loop in virtual time: run_virtual"
        self.loop = running
        self.rng = Random(seed)
        self.hosts: dict[str, SimulatedHost] = {}
        self.passed: list[Passed] = []
        """Every frame that got to where it was sent, in order."""
        self._pipes: list[Pipe] = []
        self._cut: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = {}
        self._holds: list[Hold] = []
        self._passing: dict[int, Verdict] = {}
        """Verdicts of frames with which nothing is done, by API keys."""
        self._drop_rules: list[FrameRule] = []
        self._triggers: list[tuple[FrameRule, Callable[[], None]]] = []
        self._opened = asyncio.Event()

    def host(self, name: str) -> "SimulatedHost":
        """The host of that name; there is one as soon as somebody asks for it."""
        if name not in self.hosts:
            self.hosts[name] = SimulatedHost(self, name)
        return self.hosts[name]

    # Faults

    def cut(self, source: str, target: str, *, both_ways: bool = True) -> None:
        """Let nothing pass from one host to the other, and tell nobody."""
        self._cut.add((source, target))
        if both_ways:
            self._cut.add((target, source))

    def isolate(self, name: str) -> None:
        """Cut a host off from all that there are now."""
        for other in self.hosts:
            if other != name:
                self.cut(name, other)

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Let everything pass again: between two hosts, to and from one, or everywhere."""
        named = {one, other} - {None}
        self._cut = {ends for ends in self._cut if not named <= set(ends)}
        self._let_through()

    def delay(self, source: str, target: str, seconds: float) -> None:
        """Let frames from one host to the other take so much longer."""
        self._delays[source, target] = seconds

    def hold(self, api_key: int | None = None, *, asker: str | None = None, answerer: str | None = None) -> Hold:
        """Keep requests of an API on their way, and what is sent after them on the same connection."""
        hold = Hold(self, FrameRule(api_key, asker, answerer))
        self._holds.append(hold)
        return hold

    def lose_answer(self, api_key: int | None = None, *, asker: str | None = None, answerer: str | None = None) -> None:
        """Break the connection in the place of the next answer: the request was carried out, and nobody is told."""
        self._drop_rules.append(FrameRule(api_key, asker, answerer))

    def when_answered(self, act: Callable[[], None], api_key: int, *, answerer: str | None = None) -> None:
        """Do something as soon as the next such answer has got to who asked."""
        self._triggers.append((FrameRule(api_key, None, answerer), act))

    # What hosts and sockets need of it

    def is_open(self, source: str, target: str) -> bool:
        return not self.host(target).is_dark and (source, target) not in self._cut

    def arrival(self, source: str, target: str) -> float:
        return self.loop.time() + self.rng.uniform(FASTEST, SLOWEST) + self._delays.get((source, target), 0.0)

    def verdict_on_request(self, api_key: int, asker: str, answerer: str) -> Verdict:
        if not self._holds:
            return self._passes(api_key)
        holds = tuple(hold for hold in self._holds if hold.rule.matches(api_key, asker, answerer))
        for hold in holds:
            hold.catch()
        return Verdict(api_key, holds)

    def verdict_on_answer(self, api_key: int, asker: str, answerer: str) -> Verdict:
        for rule in self._drop_rules:
            if rule.matches(api_key, asker, answerer):
                self._drop_rules.remove(rule)
                return Verdict(api_key, is_lost=True)
        return self._passes(api_key)

    def _passes(self, api_key: int) -> Verdict:
        verdict = self._passing.get(api_key)
        if verdict is None:
            verdict = self._passing[api_key] = Verdict(api_key)
        return verdict

    def answered(self, api_key: int, asker: str, answerer: str) -> None:
        if not self._triggers:
            return
        for trigger in [each for each in self._triggers if each[0].matches(api_key, asker, answerer)]:
            self._triggers.remove(trigger)
            self.loop.call_soon(trigger[1], context=self.loop.outside)

    def forget(self, hold: Hold) -> None:
        if hold in self._holds:
            self._holds.remove(hold)
        self._let_through()

    async def travel(self, source: str, target: str) -> None:
        """Waits for as long as a packet takes."""
        await asyncio.sleep(self.arrival(source, target) - self.loop.time())
        while not self.is_open(source, target):
            self._opened.clear()
            await self._opened.wait()

    def connection(self, asker: "SimulatedHost", answerer: "SimulatedHost") -> tuple[SimulatedSocket, SimulatedSocket]:
        """Both ends of a new connection: of who asks, of who answers."""
        connected = Connected(self, asker.name, answerer.name)
        to, back = (Pipe(self.loop, _Way(connected, is_answer=is_answer)) for is_answer in (False, True))
        near, far = asker.socket(to), answerer.socket(back)
        to.target, back.target = far, near
        near.other, far.other = far, near
        self._pipes = [pipe for pipe in self._pipes if not pipe.is_done]
        self._pipes += (to, back)
        return near, far

    def changed(self) -> None:
        """Who waits for a host or a link looks again."""
        self._let_through()

    def _let_through(self) -> None:
        self._opened.set()
        for pipe in self._pipes:
            pipe.flush()


class SimulatedHost:
    """A machine with one program on it. Implements `headrace.net.network.Network` for that program."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.name = name
        self.is_dark = False
        """Without power: it answers nothing, not even that nobody listens."""
        self.process = Process(name)
        self._network = network
        self._loop = network.loop
        self._sockets: dict[SimulatedSocket, None] = {}
        self._acceptors: dict[int, SimulatedAcceptor] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let the program run a coroutine; what that starts dies with the program."""
        return self._loop.start(self.process, work)

    def pause(self) -> None:
        """SIGSTOP: connections stay, and nothing is done."""
        self._loop.pause(self.process)

    def resume(self) -> None:
        self._loop.resume(self.process)

    def kill(self) -> None:
        """kill -9: the program is gone, the system closes its connections. `run` begins a new life."""
        self._end_process()
        for acceptor in list(self._acceptors.values()):
            acceptor.close()
        for sock in list(self._sockets):
            sock.close()

    def lose_power(self) -> None:
        """The machine is gone without a word, until `restore_power`; the others notice by their own means, or not."""
        self._end_process()
        self.is_dark = True
        self._acceptors.clear()
        for sock in self._sockets:
            sock.vanish()
            self._loop.call_later(KEEPALIVE_SECONDS, sock.break_both, context=self._loop.outside)
        self._sockets.clear()

    def restore_power(self) -> None:
        """The machine is back, and nothing runs on it yet. It knows nothing of connections from before."""
        self.is_dark = False
        self._network.changed()

    async def connect(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> Link:
        """See `Network`. What is simulated is not encrypted."""
        assert tls is None
        network, target = self._network, self._network.host(host)
        async with asyncio.timeout(timeout):
            await network.travel(self.name, host)
            acceptor = target.acceptor(port)
            if acceptor is None:
                await network.travel(host, self.name)
                raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
            near, far = network.connection(self, target)
            acceptor.offer(far, self.name)
            try:
                await network.travel(host, self.name)
            except BaseException:
                near.close()
                raise
            return TcpLink(self._loop, near)

    def listen(self, host: str, port: int) -> SimulatedAcceptor:
        """See `Network`. A host listens under its own name."""
        chosen = port or _FIRST_PORT + len(self._acceptors)
        if host != self.name:
            raise OSError(f"{host} is not an address of {self.name}")
        if chosen in self._acceptors:
            raise OSError(f"{host}:{chosen} is in use")
        acceptor = SimulatedAcceptor(self._loop, chosen, lambda: self._forget(chosen, acceptor))
        self._acceptors[chosen] = acceptor
        return acceptor

    def acceptor(self, port: int) -> SimulatedAcceptor | None:
        return self._acceptors.get(port)

    def socket(self, out: Pipe) -> SimulatedSocket:
        """A new end of a connection."""
        sock = SimulatedSocket(self._loop, out, lambda closed: self._sockets.pop(closed, None))
        self._sockets[sock] = None
        return sock

    def _forget(self, port: int, acceptor: SimulatedAcceptor) -> None:
        if self._acceptors.get(port) is acceptor:
            del self._acceptors[port]

    def _end_process(self) -> None:
        self._loop.kill(self.process)
        self.process = Process(self.name)
