"""A good client beside hostile neighbours: what it waits for a record to be acknowledged, beside what it waits alone.

The broker has a core of its own, with default settings and the log synced by nobody. The good client sends one record
after the other on one connection, with pauses; the attacker (`bench.attacks`) has the good client's core whenever that
one waits. So the ratio tells what the broker lets the one do to the other.
"""

import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from headrace.protocol.encode import encode_request

from . import machine
from .attacks import TOPICS
from .frames import batch_of, produce_frame, produced_offset, request_frame
from .load import WARM_UP_SECONDS, ask
from .model import Aim, Figure, Of, Sample, Work
from .produce import RELAXED, TOPIC
from .setting import Server, Setting
from .tls import encrypted

_PACE_SECONDS: Final = 0.001
_AIM: Final = Aim(of=Of.RATIO, bound=2.0, at_least=False)
_FIGURES: Final = (Figure(key="p50", label="p50", unit="ms"), Figure(key="p99", label="p99", unit="ms", aim=_AIM))
_LOGIN: Final = {
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": 'PlainLoginModule required user_alice="s3cret";'
}
_SASL: Final = "SASL_PLAINTEXT://127.0.0.1:0"


@contextmanager
def _with_logins(setting: Setting) -> Iterator[Setting]:
    """The same place with brokers that want to know who comes."""
    yield Setting(
        seconds=setting.seconds,
        rounds=setting.rounds,
        root=setting.root,
        profile=setting.profile,
        listen=_SASL,
        settings=_LOGIN,
        secure=_logged_in,
    )


def _logged_in(sock: socket.socket) -> socket.socket:
    body = bytes(encode_request(17, 1, {"mechanism": "PLAIN"}))
    ask(sock, request_frame(17, 1, body, flexible=False))
    body = bytes(encode_request(36, 1, {"auth_bytes": b"\0alice\0s3cret"}))
    ask(sock, request_frame(36, 1, body, flexible=False))
    return sock


def _waits(setting: Setting, server: Server) -> Sample:
    """Percentiles of what a record waits for its acknowledgement."""
    frame = produce_frame(TOPIC, batch_of(1, 100))
    with server.connect() as sock:

        def once() -> float:
            time.sleep(_PACE_SECONDS)
            start = time.perf_counter()
            reply = ask(sock, frame)
            took = time.perf_counter() - start
            produced_offset(reply, TOPIC)
            return took

        warm = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < warm:
            once()
        times: list[float] = []
        end = time.perf_counter() + setting.seconds
        while time.perf_counter() < end:
            times.append(once())
    times.sort()
    return {"p50": times[len(times) // 2] * 1e3, "p99": times[min(len(times) * 99 // 100, len(times) - 1)] * 1e3}


@contextmanager
def _broker(setting: Setting) -> Iterator[Server]:
    with setting.broker() as server:
        server.create_topic(TOPIC, RELAXED)
        for topic, settings in TOPICS.items():
            server.create_topic(topic, {**RELAXED, **settings})
        yield server


def alone(setting: Setting, kind: str) -> Sample:
    """The good client and nobody else."""
    with _place(setting, kind) as place, _broker(place) as server:
        return _waits(place, server)


def attacked(setting: Setting, kind: str, attack: str) -> Sample:
    """The same while a neighbour does what it can."""
    with _place(setting, kind) as place, _broker(place) as server, setting.directory() as directory:
        command = [sys.executable, "-m", "bench.attacks", attack, str(server.port)]
        with setting.running(command, directory, core=machine.CLIENT_CORE):
            return _waits(place, server)


@contextmanager
def _place(setting: Setting, kind: str) -> Iterator[Setting]:
    with ExitStack() as stack:
        if kind == "tls":
            yield stack.enter_context(encrypted(setting))
        elif kind == "sasl":
            yield stack.enter_context(_with_logins(setting))
        else:
            yield setting


_ATTACKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "k1": ("malformed", "", "malformed requests, each on a connection of its own"),
    "k2": ("many-names", "", "Metadata about millions of names"),
    "k3": ("broken-batches", "", "broken batches and bombs"),
    "k4": ("greedy-admin", "", "topics by the hundred and hard expressions"),
    "k5": ("wrong-logins", "sasl", "wrong logins"),
    "k6": ("half-requests", "", "four requests of 100 MiB that never end"),
    "unread": ("unread-answers", "", "answers that nobody reads"),
    "k7": ("strange-values", "", "strange values"),
    "kinj": ("escapes", "", "names with control characters"),
    "kidle": ("idle-connections", "", "3,000 idle connections"),
    "tls": ("handshakes", "tls", "TLS handshakes"),
    "tls-half": ("half-handshakes", "tls", "TLS handshakes that are left alone"),
}


def works() -> list[Work]:
    """Each attack by itself."""
    return [
        Work(
            name=f"hostile-{name}",
            title=f"a record beside {words}",
            against="the same client alone" + {"tls": ", TLS 1.3", "sasl": ", logged in"}.get(kind, ""),
            figures=_FIGURES,
            broker=partial(attacked, kind=kind, attack=attack),
            ceiling=partial(alone, kind=kind),
        )
        for name, (attack, kind, words) in _ATTACKS.items()
    ]
