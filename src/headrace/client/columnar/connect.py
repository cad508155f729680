"""A connection from nothing to ready: TCP, TLS, the versions both sides speak, SASL."""

import socket
import ssl
import time

from headrace.net.address import Address
from headrace.protocol.errors import ProtocolViolation

from ..core.errors import AuthenticationRefused, ConnectionLost, certificate_refused
from ..core.handshake import ConnectionSession, ConnectionSettings, HandshakeRequest, Steps, advanced, handshake
from .channel import Channel


def open_channel(address: Address, settings: ConnectionSettings) -> Channel:
    """A channel that is ready for requests.

    `ConnectionLost` when the broker cannot be reached or does not speak Kafka's protocol, `AuthenticationRefused`
    when either side does not trust the other.
    """
    sock = _connected(address, settings)
    first = min(settings.connect_timeout, settings.request_timeout)
    channel = Channel(sock, address, client_id=settings.client_id, timeout=first)
    try:
        session = _shake_hands(channel, handshake(settings))
        channel.set_timeout(settings.request_timeout)
        channel.served = session.served
        channel.expires_at = None if session.lifetime is None else time.monotonic() + session.lifetime
    except BaseException:
        channel.close()
        raise
    return channel


def _connected(address: Address, settings: ConnectionSettings) -> socket.socket:
    try:
        sock = socket.create_connection(address, timeout=settings.connect_timeout)
    except OSError as error:
        raise ConnectionLost(f"{address}: {_reason(error)}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if settings.tls is None else settings.tls.wrap_socket(sock, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise certificate_refused(address, error.verify_message) from error
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"{address}: no TLS connection: {_reason(error)}") from error


def _shake_hands(channel: Channel, steps: Steps) -> ConnectionSession:
    try:
        step = advanced(steps, None)
        while isinstance(step, HandshakeRequest):
            try:
                channel.send(step.api_key, step.version, [step.body])
                body = channel.receive().body
            except ConnectionLost as lost:
                step = advanced(steps, lost)
            else:
                step = advanced(steps, body)
        return step
    except ProtocolViolation as error:
        raise channel.lose(str(error)) from error
    except AuthenticationRefused as error:
        raise AuthenticationRefused(f"{channel.address}: {error}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (getattr(error, "reason", None) or error.strerror or str(error)).lower()
