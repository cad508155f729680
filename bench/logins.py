"""Logins by SCRAM: connect, log in, hang up, one after the other, beside the same by PLAIN, which is one hash.

The client derives its key once and keeps it, as drivers do: what is measured is the exchange of messages and the
broker's proofs, and how many clients may come back at once after a restart.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final
from unittest.mock import patch

from headrace.client.core import sasl
from headrace.protocol import scram
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode

from .frames import request_frame
from .load import ask
from .model import CPU, BenchError, Figure, Measure, Sample, Work
from .setting import Server, Setting

_USER, _PASSWORD = "bench", "s3cret"
_HANDSHAKE_VERSION, _VERSION = 1, 2
_BODY: Final = 9
"""Where the body of an answer begins: after its length, its correlation id and its tags."""
_SETTINGS: Final[Mapping[str, str]] = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'PlainLoginModule required user_{_USER}="{_PASSWORD}";',
    "headrace.add.scram": ";".join(
        f"{mechanism}=[name={_USER},password={_PASSWORD}]" for mechanism in scram.SCRAM_MECHANISMS
    ),
}


def _log_in(server: Server, mechanism: str, exchange: sasl.SaslClient) -> None:
    with server.connect() as sock:
        body = bytes(encode_request(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": mechanism}))
        ask(sock, request_frame(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, body, flexible=False))
        token = exchange.first()
        while True:
            body = bytes(encode_request(ApiKey.SASL_AUTHENTICATE, _VERSION, {"auth_bytes": token}))
            reply = ask(sock, request_frame(ApiKey.SASL_AUTHENTICATE, _VERSION, body, flexible=True))
            answer = decode_response(ApiKey.SASL_AUTHENTICATE, _VERSION, memoryview(reply)[_BODY:])
            if answer.error_code is not ErrorCode.none:
                raise BenchError(f"a login failed: {answer.error_message}")
            if exchange.is_done:
                return
            token = exchange.answer(answer.auth_bytes)
            if exchange.is_done:
                return


def _measured(setting: Setting, mechanism: str, begin: Callable[[], sasl.SaslClient]) -> Sample:
    place = Setting(
        seconds=setting.seconds,
        rounds=setting.rounds,
        root=setting.root,
        profile=setting.profile,
        listen="SASL_PLAINTEXT://127.0.0.1:0",
    )
    with place.broker(_SETTINGS) as server, patch.object(sasl, "salt_password", cache(scram.salt_password)):
        _log_in(server, mechanism, begin())
        cpu, start = server.cpu_seconds(), time.perf_counter()
        count = 0
        while time.perf_counter() < start + setting.seconds:
            _log_in(server, mechanism, begin())
            count += 1
        seconds, used = time.perf_counter() - start, server.cpu_seconds() - cpu
    return {"rate": count / seconds, CPU: used / count * 1e6}


def _by_scram(mechanism: str) -> Measure:
    return lambda setting: _measured(setting, mechanism, lambda: sasl.ScramClient(mechanism, _USER, _PASSWORD))


def _by_plain(setting: Setting) -> Sample:
    return _measured(setting, sasl.PLAIN, lambda: sasl.Plain(_USER, _PASSWORD))


def works() -> list[Work]:
    """SCRAM by both hashes."""
    return [
        Work(
            name=f"logins-{mechanism.lower()}",
            title=f"connect and log in by {mechanism}",
            against="the same by PLAIN",
            figures=(Figure(key="rate", label="", unit="logins/s"),),
            broker=_by_scram(mechanism),
            ceiling=_by_plain,
            cpu_unit="µs/login",
        )
        for mechanism in scram.SCRAM_MECHANISMS
    ]
