"""What quotas cost: Produce as in `produce`, by a client that has quotas and stays below them, beside a broker without.

Each request is counted against the quota of bytes and that of time. Measured is the broker's processor time, which is
what limits it: throughput itself varies by more than that costs.
"""

from typing import Final

from headrace.client.core.quotas import alter_quotas_request, read_altered_quotas
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode

from .frames import batch_of, batch_up_to, request_frame
from .load import Pump, ask
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import TOPIC, Shape
from .setting import Server, Setting

_VERSION: Final = 1
_BODY: Final = 9
"""Where the body of a flexible answer begins: after its length, its correlation id and its tags."""
_AMPLE: Final = {"producer_byte_rate": 1e15, "request_percentage": 1e6}
_OTHERS: Final = 1_000
"""Users with quotas of their own."""


def _limit(server: Server) -> None:
    changes = [({"user": "ANONYMOUS"}, _AMPLE), *(({"user": f"user-{number}"}, _AMPLE) for number in range(_OTHERS))]
    body = bytes(encode_request(ApiKey.ALTER_CLIENT_QUOTAS, _VERSION, alter_quotas_request(changes)))
    with server.connect() as sock:
        reply = ask(sock, request_frame(ApiKey.ALTER_CLIENT_QUOTAS, _VERSION, body, flexible=True))
    answer = decode_response(ApiKey.ALTER_CLIENT_QUOTAS, _VERSION, memoryview(reply)[_BODY:])
    codes = {code for _, code, _ in read_altered_quotas(answer)}
    if codes != {ErrorCode.none}:
        raise BenchError(f"quotas could not be set: {codes}")


def _produce(setting: Setting, shape: Shape, *, limited: bool) -> Sample:
    load = shape.load()
    with setting.broker() as server:
        server.create_topic(TOPIC, shape.settings())
        if limited:
            _limit(server)
        with server.connect() as sock:
            pumped = Pump(sock, load).run(setting.seconds, server.cpu_seconds)
    per_request = pumped.cpu_seconds / pumped.frames
    return {"rate": 1 / per_request, CPU: per_request * 1e6}


def _work(name: str, words: str, shape: Shape) -> Work:
    return Work(
        name=name,
        title=f"produce, {words} requests, no fsync, with quotas of bytes and time",
        against="the same without quotas",
        figures=(Figure(key="rate", label="", unit="req/CPU s", aim=Aim(of=Of.RATIO, bound=0.98, at_least=True)),),
        broker=lambda setting: _produce(setting, shape, limited=True),
        ceiling=lambda setting: _produce(setting, shape, limited=False),
        cpu_unit="µs/req",
    )


def works() -> list[Work]:
    """Requests that leave much room for counting, and little."""
    medium, small = batch_up_to(16 * 1024 - 128, 100), batch_of(1, 100)
    return [
        _work("quotas-16k", "16 KB", Shape(batch=medium, window=128, durable=False)),
        _work("quotas-tiny", "one 100 B record's", Shape(batch=small, window=1000, durable=False)),
    ]
