"""A connection on the event loop from nothing to ready: TCP, TLS, the handshake."""

import asyncio
import ssl

from headrace.net.address import Address
from headrace.protocol.errors import ProtocolViolation

from ..core.errors import AuthenticationRefused, ConnectionLost
from ..core.handshake import ConnectionSession, ConnectionSettings, Steps, handshake
from .connection import Connection


async def dial(address: Address, settings: ConnectionSettings) -> Connection:
    """A connection that is ready; `ConnectionLost` or `AuthenticationRefused` otherwise."""
    try:
        async with asyncio.timeout(settings.connect_timeout):
            connection = await _connected(address, settings)
            try:
                session = await _shake_hands(connection, handshake(settings))
            except BaseException:
                connection.close()
                raise
    except TimeoutError as error:
        raise ConnectionLost(f"{address}: timed out while connecting") from error
    connection.served = session.served
    if session.lifetime is not None:
        connection.expires_at = asyncio.get_running_loop().time() + session.lifetime
    return connection


async def _connected(address: Address, settings: ConnectionSettings) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(address, settings.client_id, settings.request_timeout),
            address.host,
            address.port,
            ssl=settings.tls,
            server_hostname=address.host if settings.tls is not None else None,
        )
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationRefused(
            f"{address}: the broker's certificate is refused: {error.verify_message}"
        ) from error
    except OSError as error:
        raise ConnectionLost(f"{address}: {(error.strerror or str(error)).lower()}") from error
    return connection


async def _shake_hands(connection: Connection, steps: Steps) -> ConnectionSession:
    try:
        request = next(steps)
        while True:
            try:
                body = await connection.ask_bytes(request.api_key, request.version, [request.body])
            except ConnectionLost as lost:
                request = steps.throw(lost)
            else:
                request = steps.send(body)
    except StopIteration as done:
        session: ConnectionSession = done.value
        return session
    except ProtocolViolation as error:
        raise ConnectionLost(f"{connection.address}: {error}") from error
    except AuthenticationRefused as error:
        raise AuthenticationRefused(f"{connection.address}: {error}") from error
