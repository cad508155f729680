"""TLS over a non-blocking socket, behind the interface of a socket.

Bytes move through `ssl.MemoryBIO`, many records to a system call. Measured on one core of the machine that this was
written on, TLS 1.3 with AES-256-GCM, per second of CPU: 2.2 GiB received and 3.0 GiB sent in pieces of 256 KiB; a
non-blocking `SSLSocket`, which makes two system calls for each record of 16 KiB, 1.6 and 2.0. TLS in the kernel was not
there to be measured: it needs the module `tls` and an OpenSSL that was built for it.

A socket tells that it is readable only while the *system* has bytes. What was read from it and did not fit into the
reader's buffer is kept here: `has_more` says so, and whoever reads must ask again without waiting. What was encrypted
and could not be sent is kept too: `send` and `sendfile` raise `BlockingIOError` until all of it is gone, and only then
say that they have sent what they were given. So a caller that waits until it can write, and gives the same bytes again,
as with any socket, never loses any and never holds more than a turn's bytes encrypted.

Of a file each step is read and encrypted while it is in the processor's cache, all that a turn sends goes to the system
in one call, and so does the head of the answer before it, which is given with `MSG_MORE`.

Memory: a connection's record buffers are given back by OpenSSL while it is idle, but what its BIOs have grown to stays
until it is closed: so they are fed in steps, of `_STEP` bytes, and the large buffers are shared by all (`Scratch`). An
idle connection takes 26 KB (8 KB without TLS), up to 190 KB once it has carried large requests and answers.
"""

import os
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, cast

from .network import Buffer, Socket

PIECE: Final = 256 * 1024
"""Bytes that are received, or encrypted and sent, in one call."""
TURN: Final = 2 * PIECE
"""Bytes of a file that are sent before others have their turn: 0.2 ms."""
RECORD: Final = 16 * 1024
_STEP: Final = 64 * 1024
"""Bytes read from a file, or given to a BIO, at a time: half as many take a tenth more, more change nothing."""
_LEAST_READ: Final = RECORD + 512
_MOST_UNASKED: Final = 64 * 1024
"""Bytes that are kept of what TLS itself answers (key updates, alerts) for someone who does not read them."""
_MOST_PARTS: Final = 64
_MOST_FRUITLESS: Final = 64 * 1024
"""Bytes in which there is nothing to read: a record has 16 KiB at most, a key update costs as much as a request."""
_PASSES: Final = 4
"""Reads in one step of a handshake."""
_HANDSHAKE: Final = 22
"""The first byte of every TLS connection."""


class TlsFailure(ConnectionError):
    """The other side cannot be talked to; the message says why, in words for who runs the broker."""


class Scratch:
    """Buffers that all streams of one event loop use in turns, each only while it works."""

    __slots__ = ("file", "received")

    def __init__(self) -> None:
        self.received = memoryview(bytearray(PIECE))
        self.file = memoryview(bytearray(_STEP))


class TlsStream:
    """One side of a TLS connection. Implements `Socket`, once `shake_hands` has returned True."""

    __slots__ = (
        "_first_byte",
        "_fruitless",
        "_has_ended",
        "_has_failed",
        "_incoming",
        "_is_closed",
        "_make",
        "_outgoing",
        "_owed",
        "_plain_text",
        "_scratch",
        "_sock",
        "_tls",
        "_unsent",
        "_unsent_bytes",
        "has_begun",
        "has_more",
        "is_open",
    )

    def __init__(
        self,
        sock: Socket,
        context: ssl.SSLContext,
        scratch: Scratch,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        self._sock = sock
        self._scratch = scratch
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._plain_text = _PLAIN_TEXT if server_side else _NO_TLS
        self._make = partial(context.wrap_bio, self._incoming, self._outgoing, server_side, server_hostname)
        self._unsent: list[memoryview] = []
        self._unsent_bytes = 0
        self._owed = 0
        """Bytes given to be sent that are encrypted, but not all with the system yet."""
        self._first_byte = -1
        self._fruitless = 0
        """Bytes that came since the last that there was something to read in."""
        self._has_ended = False
        self._has_failed = False
        self._is_closed = False
        self.has_begun = False
        """Whether the handshake has."""
        self.is_open = False
        """Whether it is done."""
        self.has_more = False
        """Whether there may be bytes to read although the socket says nothing."""

    @property
    def session(self) -> ssl.SSLObject:
        """What was agreed on, and who the other side is."""
        return self._tls

    @property
    def is_blocked(self) -> bool:
        """Whether something waits until the socket can be written."""
        return bool(self._unsent)

    def fileno(self) -> int:
        return self._sock.fileno()

    def begin(self) -> None:
        """Make what a handshake needs, which takes a third as long as its longest step."""
        self._tls = self._make()
        self.has_begun = True

    def shake_hands(self) -> bool:
        """Go on with the handshake as far as possible without waiting; whether it is done.

        `TlsFailure` says why there will be no connection; the other side was told as well as TLS can.
        """
        if not self.has_begun:
            self.begin()
        for _ in range(_PASSES):
            if self._have_shaken():
                return True
            try:
                count = self._receive(_LEAST_READ)
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionResetError:
                count = 0
            if not count:
                raise TlsFailure(self._ended_early())
            self._incoming.write(self._scratch.received[:count])
        return self._have_shaken()

    def _have_shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._push_quietly()
            return False
        except (ssl.SSLError, OSError, ValueError) as error:
            self._has_failed = True
            self._push_quietly()
            raise TlsFailure(self._words(error)) from None
        self.is_open = True
        self.has_more = bool(self._incoming.pending)
        self._push_quietly()
        return True

    def recv_into(self, buffer: memoryview, /) -> int:
        """As a socket does; 0 once the other side has said that it is done. `ConnectionError` where it just stopped."""
        count = 0
        if self.has_more:
            count = self._decrypt(buffer, 0)
            self.has_more = False
        if not count and not self._has_ended:
            count = self._receive_into(buffer)
        self.has_more = count == len(buffer)
        if self._outgoing.pending:
            self._push_quietly()
            if self._unsent_bytes > _MOST_UNASKED + (2 * PIECE if self._owed else 0):
                raise TlsFailure("it makes TLS answer, and reads no answers")
        if count or self._has_ended:
            return count
        raise BlockingIOError

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """As a socket does; what is given after a `BlockingIOError` must begin as before."""
        if self._owed:
            self._push()
            return self._paid()
        if flags & socket.MSG_MORE and len(data) < RECORD and not self._unsent:
            self._encrypt(memoryview(data))  # it goes with what follows
            return len(data)
        return self._send_all(memoryview(data)[:PIECE])

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int:
        """As a socket does; what is given after a `BlockingIOError` must begin as before."""
        if self._owed:
            self._push()
            return self._paid()
        size = 0
        run: list[Buffer] = []
        for buffer in buffers:
            if size >= RECORD or (run and len(buffer) >= RECORD):
                break
            run.append(buffer)
            size += len(buffer)
        return self._send_all(memoryview(run[0] if len(run) == 1 else b"".join(run))[:PIECE])

    def sendfile(self, file: int, position: int, count: int) -> int:
        """As `os.sendfile` does, at most `TURN` bytes; 0 where the file ends. `OSError` of the file or the socket."""
        if self._owed:
            self._push()
            return self._paid()
        held, size, count = self._scratch.file, 0, min(count, TURN)
        while size < count:
            read = os.preadv(file, [held[: count - size]], position + size)
            if not read:
                break
            self._encrypt(held[:read])
            size += read
        self._owed = size
        self._push()
        return self._paid()

    def close(self) -> None:
        """Say that nothing more comes, where that can be said, and end the connection. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.is_open and not self._has_failed and not self._unsent:
            try:
                self._tls.unwrap()
            except (ssl.SSLError, OSError, ValueError):
                pass
            self._push_quietly()
        self._unsent.clear()
        self._sock.close()

    def _receive(self, most: int) -> int:
        count = self._sock.recv_into(self._scratch.received[:most])
        if count and self._first_byte < 0:
            self._first_byte = self._scratch.received[0]
        return count

    def _receive_into(self, buffer: memoryview) -> int:
        """No more is read than can be decrypted into the buffer, up to a record that was begun before."""
        received = self._receive(min(max(len(buffer), _LEAST_READ), PIECE))
        if not received:
            self._has_failed = True
            raise ConnectionResetError("the connection ended without a word (close_notify)")
        data, count = self._scratch.received, 0
        for start in range(0, received, _STEP):
            before, end = count, min(start + _STEP, received)
            self._incoming.write(data[start:end])
            count = self._decrypt(buffer, count)
            self._fruitless = 0 if count > before or count == len(buffer) else self._fruitless + end - start
        if self._fruitless > _MOST_FRUITLESS:
            raise TlsFailure("it sends TLS messages, and nothing in them")
        return count

    def _decrypt(self, buffer: memoryview, count: int) -> int:
        """Fill the buffer from there; up to where it is filled."""
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        size, pending, incoming = len(buffer), self._tls.pending, self._incoming
        try:
            while count < size:
                got = read(size - count, buffer[count:])
                if not got:
                    self._has_ended = True
                    break
                count += got
                if not incoming.pending and not pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ValueError) as error:
            self._has_failed = True
            self._push_quietly()
            raise TlsFailure(self._words(error)) from None
        return count

    def _send_all(self, data: memoryview) -> int:
        for start in range(0, len(data), _STEP):
            self._encrypt(data[start : start + _STEP])
        self._owed = len(data)
        self._push()
        return self._paid()

    def _encrypt(self, data: memoryview) -> None:
        try:
            self._tls.write(data)
        except (ssl.SSLError, ValueError) as error:
            self._has_failed = True
            raise TlsFailure(self._words(error)) from None
        self._keep(self._outgoing.read())

    def _paid(self) -> int:
        owed, self._owed = self._owed, 0
        return owed

    def _keep(self, data: bytes) -> None:
        if data:
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)

    def _push(self) -> None:
        """Hand over to the system what waits; `BlockingIOError` where it does not take all of it."""
        unsent = self._unsent
        while unsent:
            sent = self._sock.sendmsg(unsent[:_MOST_PARTS])
            self._unsent_bytes -= sent
            if not self._unsent_bytes:
                unsent.clear()
                return
            done = 0
            while done < len(unsent) and sent >= len(unsent[done]):
                sent -= len(unsent[done])
                done += 1
            del unsent[:done]
            if sent:
                unsent[0] = unsent[0][sent:]

    def _push_quietly(self) -> None:
        """Send what TLS itself has to say, as far as that is possible; what is wrong with the socket shows anyway."""
        if self._outgoing.pending:
            self._keep(self._outgoing.read())
        try:
            self._push()
        except OSError:
            pass

    @property
    def has_heard(self) -> bool:
        """Whether the other side has said anything at all."""
        return self._first_byte >= 0

    def _ended_early(self) -> str:
        if self._first_byte < 0:
            return "it closed the connection before it said anything"
        if self._first_byte != _HANDSHAKE:
            return self._plain_text
        return "it closed the connection in the middle of the handshake; perhaps it does not trust our certificate"

    def _words(self, error: Exception) -> str:
        if not self.is_open and self._first_byte not in (-1, _HANDSHAKE):
            return self._plain_text
        return failure_words(error)


_PLAIN_TEXT: Final = "it spoke plain text on a TLS listener; its security.protocol must be SSL or SASL_SSL"
_NO_TLS: Final = "it does not speak TLS"
_UNTRUSTED: Final = "it does not trust our certificate"
_WORDS: Final = {
    "HTTP_REQUEST": "it spoke HTTP without TLS",
    "HTTPS_PROXY_REQUEST": "it took us for an HTTP proxy",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no client certificate, and ssl.client.auth=required",
    "UNSUPPORTED_PROTOCOL": "it offers no TLS version that ssl.enabled.protocols allows",
    "NO_PROTOCOLS_AVAILABLE": "it offers no TLS version that ssl.enabled.protocols allows",
    "VERSION_TOO_LOW": "it offers no TLS version that ssl.enabled.protocols allows",
    "NO_SHARED_CIPHER": "it offers no cipher suite that this side has (ssl.cipher.suites, and the kind of our key)",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "it accepts no signature that our certificate's key can make",
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "TLSV1_ALERT_DECRYPT_ERROR": _UNTRUSTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it does not accept the kind of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds our certificate expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it finds our certificate revoked",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it has no TLS version, cipher suite or signature in common with us",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it has no TLS version in common with us",
    "TLSV1_ALERT_ACCESS_DENIED": "it denies access to our certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of ours",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "what came was garbled on its way",
    "UNEXPECTED_EOF_WHILE_READING": "the connection ended without a word (close_notify)",
}
_VERIFIED: Final = {
    "unable to get local issuer certificate": "it is signed by nobody in the truststore",
    "unable to verify the first certificate": "it is signed by nobody in the truststore",
    "self-signed certificate": "it is signed by itself, and is not in the truststore",
    "self-signed certificate in certificate chain": "its authority is not in the truststore",
    "certificate has expired": "it has expired",
    "certificate is not yet valid": "it is not valid yet; are both clocks right?",
    "certificate revoked": "it is revoked",
    "unsuitable certificate purpose": "it is not for this use (extended key usage: clientAuth, serverAuth)",
    "unsupported certificate purpose": "it is not for this use (extended key usage: clientAuth, serverAuth)",
    "CA signature digest algorithm too weak": "its authority's signature is too weak",
}


def failure_words(error: Exception) -> str:
    """What an error of TLS means, in words about the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = error.verify_message or ""
        return f"its certificate is refused: {_VERIFIED.get(found, found.rstrip('.'))}"
    reason = getattr(error, "reason", None) or ""
    if reason in _WORDS:
        return _WORDS[reason]
    return str(reason or error).lower().replace("_", " ")
