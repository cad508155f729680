"""How brokers reach each other: an interface, so that a whole cluster can run in one process, in virtual time.

`headrace.net.tcp` is the real one; `headrace.testing` has one that delays, drops and cuts.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class LinkClosed(ConnectionError):  # noqa: N818 - named for the state found
    """The connection ended before the answer came: the request may have been carried out or not."""


class Link(Protocol):
    """A connection to one broker. Requests may be sent before earlier ones are answered; answers keep their order."""

    @property
    def is_closed(self) -> bool: ...

    async def ask(self, frame: Sequence[Buffer]) -> memoryview:
        """The answer to a frame given in parts, both without the length in front; `LinkClosed` if none comes."""
        ...

    def close(self) -> None:
        """Ends the connection; those who wait get `LinkClosed`. Safe to call twice."""
        ...


class Network(Protocol):
    """Opens links."""

    async def connect(self, host: str, port: int, timeout: float) -> Link:
        """A new link; `OSError` when there is nobody, or nobody answers in time."""
        ...
