"""What ACLs cost: Produce as in `produce`, with an authorizer and 10,000 ACLs, beside a broker without one.

The client is no super user: one ACL allows it to write to the topic, the others are about other topics, prefixes and
principals. Counted by the broker's processor time, which is what limits it: throughput itself varies by more than a
check costs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.protocol.acl import AclOperation, PatternType, PermissionType, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode

from .frames import batch_of, batch_up_to, request_frame
from .load import Pump, ask
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import TOPIC, Shape
from .setting import Server, Setting

ACLS: Final = 10_000
_AT_ONCE: Final = 2_500
_VERSION: Final = 3
_BODY: Final = 9
"""Where the body of a flexible answer begins: after its length, its correlation id and its tags."""
_ON: Final = {"authorizer.class.name": "headrace", "allow.everyone.if.no.acl.found": "true"}
_OFF: Final[Mapping[str, str]] = {}


def _acl(pattern: PatternType, name: str, principal: str) -> dict[str, Any]:
    return {
        "resource_type": ResourceType.TOPIC,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": "*",
        "operation": AclOperation.WRITE,
        "permission_type": PermissionType.ALLOW,
    }


def _acls() -> Iterator[dict[str, Any]]:
    """One that counts, and others: literal, prefixed and for all topics, of as many principals."""
    yield _acl(PatternType.LITERAL, TOPIC, "User:ANONYMOUS")
    for number in range(ACLS - 1):
        if number % 100 == 0:
            yield _acl(PatternType.LITERAL, "*", f"User:{number}")
        elif number % 2:
            yield _acl(PatternType.PREFIXED, f"{TOPIC[: number % 4]}prefix-{number}-", f"User:{number}")
        else:
            yield _acl(PatternType.LITERAL, f"topic-{number}", f"User:{number}")


def _create(server: Server) -> None:
    acls = list(_acls())
    with server.connect() as sock:
        for start in range(0, len(acls), _AT_ONCE):
            body = bytes(encode_request(ApiKey.CREATE_ACLS, _VERSION, {"creations": acls[start : start + _AT_ONCE]}))
            reply = ask(sock, request_frame(ApiKey.CREATE_ACLS, _VERSION, body, flexible=True))
            answer = decode_response(ApiKey.CREATE_ACLS, _VERSION, memoryview(reply)[_BODY:])
            codes = {result.error_code for result in answer.results}
            if codes != {ErrorCode.none}:
                raise BenchError(f"ACLs could not be made: {codes}")


def _produce(setting: Setting, shape: Shape, settings: Mapping[str, str]) -> Sample:
    load = shape.load()
    with setting.broker(settings) as server:
        server.create_topic(TOPIC, shape.settings())
        if settings:
            _create(server)
        with server.connect() as sock:
            pumped = Pump(sock, load).run(setting.seconds, server.cpu_seconds)
    per_request = pumped.cpu_seconds / pumped.frames
    return {"rate": 1 / per_request, CPU: per_request * 1e6}


def _work(name: str, words: str, shape: Shape) -> Work:
    return Work(
        name=name,
        title=f"produce, {words} requests, no fsync, with {ACLS:,} ACLs",
        against="the same without an authorizer",
        figures=(Figure(key="rate", label="", unit="req/CPU s", aim=Aim(of=Of.RATIO, bound=0.97, at_least=True)),),
        broker=lambda setting: _produce(setting, shape, _ON),
        ceiling=lambda setting: _produce(setting, shape, _OFF),
        cpu_unit="µs/req",
    )


def works() -> list[Work]:
    """Requests that leave much room for a check, and little."""
    medium, small = batch_up_to(16 * 1024 - 128, 100), batch_of(1, 100)
    return [
        _work("acls-16k", "16 KB", Shape(batch=medium, window=128, durable=False)),
        _work("acls-tiny", "one 100 B record's", Shape(batch=small, window=1000, durable=False)),
    ]
