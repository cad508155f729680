"""One user's client: a cluster, a producer, and when they were last used."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from headrace.client.core.handshake import ConnectionSettings
from headrace.net.address import Address

from .cluster import Cluster
from .producer import Producer


class Client:
    """Everything that is open in the name of one user."""

    def __init__(
        self, bootstrap: Sequence[Address], settings: ConnectionSettings, *, principal: str = "", patience: float = 10.0
    ) -> None:
        self.principal = principal
        """Whom the gateway takes the user for: what idempotency keys belong to."""
        self.cluster = Cluster(bootstrap, settings, patience=patience)
        self.producer = Producer(self.cluster, patience=patience)
        self.uses = 0
        """Streams and members that go on after the request that began them."""

    async def close(self) -> None:
        """Wait a little for what is being written, then end every connection."""
        try:
            async with asyncio.timeout(5):
                await self.producer.close()
        except TimeoutError:
            pass
        self.cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
