"""A connection from nothing to ready: TCP, TLS, the versions both sides speak, SASL."""

import asyncio
import ssl
from typing import Any, Final

from headrace import __version__
from headrace.net.address import Address
from headrace.net.connect import Manner
from headrace.net.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from headrace.net.sasl import Exchange
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode, ProtocolViolation

from .connection import Connection

_SOFTWARE: Final = {"client_software_name": "headrace-gateway", "client_software_version": __version__}
_FIRST_TRIED: Final = 3
_REAUTHENTICATION_SHARE: Final = 0.85
_MOST_STEPS: Final = 8


async def dial(address: Address, manner: Manner) -> Connection:
    """A connection that is ready; `ConnectionLost` or `AuthenticationRefused` otherwise."""
    try:
        async with asyncio.timeout(manner.connect_timeout):
            connection = await _connected(address, manner)
            try:
                await _prepare(connection, manner)
            except BaseException:
                connection.close()
                raise
            return connection
    except TimeoutError as error:
        raise ConnectionLost(f"{address}: timed out while connecting") from error


async def _connected(address: Address, manner: Manner) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(address, manner.client_id, manner.request_timeout),
            address.host,
            address.port,
            ssl=manner.tls,
            server_hostname=address.host if manner.tls is not None else None,
        )
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationRefused(
            f"{address}: the broker's certificate is refused: {error.verify_message}"
        ) from error
    except OSError as error:
        raise ConnectionLost(f"{address}: {(error.strerror or str(error)).lower()}") from error
    return connection


async def _prepare(connection: Connection, manner: Manner) -> None:
    connection.served = await _served_versions(connection)
    if manner.exchange is None:
        return
    assert manner.mechanism is not None
    try:
        await _shake_hands(connection, manner.mechanism)
        lifetime = await _exchange_tokens(connection, manner.exchange())
    except VersionNotServed as error:
        raise AuthenticationRefused(f"{connection.address}: {error}; does its listener have SASL?") from error
    if lifetime:
        connection.expires_at = asyncio.get_running_loop().time() + lifetime * _REAUTHENTICATION_SHARE


async def _served_versions(connection: Connection) -> dict[int, tuple[int, int]]:
    answer = await _ask_versions(connection, _FIRST_TRIED)
    if answer.error_code is ErrorCode.unsupported_version:
        answer = await _ask_versions(connection, 0)
    if answer.error_code is not ErrorCode.none:
        raise ConnectionLost(f"{connection.address}: the broker does not say what it serves: {answer.error_code.name}")
    return {int(api.api_key): (api.min_version, api.max_version) for api in answer.api_keys}


async def _ask_versions(connection: Connection, version: int) -> Any:
    """A broker that does not know the version answers in version 0, whatever was asked."""
    key = ApiKey.API_VERSIONS
    body = await connection.ask_bytes(key, version, [encode_request(key, version, _SOFTWARE)])
    refusal = ErrorCode.unsupported_version.value.to_bytes(2, "big")
    try:
        return decode_response(key, 0 if bytes(body[:2]) == refusal else version, body)
    except ProtocolViolation as error:
        raise ConnectionLost(f"{connection.address}: {error}") from error


async def _shake_hands(connection: Connection, mechanism: str) -> None:
    answer = await connection.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        has = ", ".join(answer.mechanisms) or "no mechanism"
        raise AuthenticationRefused(f"the brokers take {has}, not {mechanism}")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationRefused(f"the brokers refuse SASL: {answer.error_code.name.upper()}")


async def _exchange_tokens(connection: Connection, exchange: Exchange) -> float:
    """Tokens to and fro until both sides are content; returns for how many seconds, 0 for as long as it lasts."""
    token = exchange.first()
    for _ in range(_MOST_STEPS):
        said_all = exchange.is_done
        answer = await connection.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer.error_code is not ErrorCode.none:
            raise AuthenticationRefused(answer.error_message or answer.error_code.name.upper())
        if answer.auth_bytes or not said_all:
            token = exchange.answer(answer.auth_bytes)
        if exchange.is_done:
            lifetime = getattr(answer, "session_lifetime", None)
            return float(lifetime.total_seconds()) if lifetime is not None else 0.0
    raise AuthenticationRefused("the broker never came to an end")
