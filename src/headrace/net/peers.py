"""How a broker asks another one of its cluster: an interface; `headrace.server.clustered.peers` keeps the links."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from headrace.protocol.peer import InternalApi, PeerMessage

from .network import Buffer

REQUEST_SECONDS: Final = 10.0
"""How long an answer may take, unless who asks says otherwise."""


class Purpose(Enum):
    """What a link is for. Answers keep the order of their requests, so those that wait have their own links."""

    CONTROL = "control"
    FETCH = "fetch"
    FEED = "feed"
    FORWARD = "forward"
    LETTERS = "letters"
    MARKERS = "markers"
    SHARE = "share"
    VERIFY = "verify"


class PeerUnreachable(ConnectionError):
    """No answer from a broker, for any reason. Unless it `was_sent`, the request was certainly not carried out."""

    def __init__(self, broker_id: int, reason: str, *, was_sent: bool) -> None:
        super().__init__(f"broker {broker_id} cannot be reached: {reason}")
        self.broker_id = broker_id
        self.was_sent = was_sent


class Peers(Protocol):
    """The other brokers. Every call raises `PeerUnreachable` when no sound answer comes in time."""

    async def ask(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        values: Mapping[str, Any],
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> Any:
        """The answer to a request of Kafka's: values in, by the newest version's field names, kio's entity out."""
        ...

    async def ask_bytes(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> memoryview:
        """The body of the answer to a request of Kafka's whose body is given; the caller's own, see `Link.ask`."""
        ...

    async def tell(
        self,
        broker_id: int,
        api: InternalApi,
        values: Mapping[str, Any],
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> Mapping[str, Any]:
        """The answer to a request between brokers; a `CodedError` when the other could not carry it out."""
        ...

    async def send(
        self,
        broker_id: int,
        api: InternalApi,
        message: PeerMessage,
        *,
        purpose: Purpose = Purpose.CONTROL,
        timeout: float = REQUEST_SECONDS,
    ) -> PeerMessage:
        """The same with bytes attached."""
        ...
