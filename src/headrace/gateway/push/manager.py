"""All subscriptions on this gateway: each active one has a `PushDelivery`; changes in the store start and end them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.protocol.errors import CodedError

from ..credentials import Clients
from ..publishing import now_ms
from .addresses import AddressRules
from .delivery import PushDelivery
from .model import DeliveryProgress, PushSubscription
from .sending import CallbackSender
from .store import Store

_NOTE_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


class Manager:
    """Follows the store while it `runs`."""

    def __init__(self, clients: Clients) -> None:
        self.rules = AddressRules(clients.settings.push_allow)
        self.store = Store(clients.own, self._changed)
        self._clients = clients
        self._name = clients.settings.advertise or f"{socket.gethostname()}-{os.getpid()}"
        self._deliveries: dict[str, tuple[PushDelivery, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self.store.follow()), asyncio.ensure_future(self._note())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for name in list(self._deliveries):
                self._end(name)
            await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    def progress(self, name: str) -> DeliveryProgress:
        """A subscription's progress: as known here where it is delivered here, else as its owner last wrote it down."""
        held = self._deliveries.get(name)
        if held is not None and held[0].is_owner:
            return held[0].progress
        return self.store.progress.get(name, DeliveryProgress())

    def _changed(self, name: str) -> None:
        subscription = self.store.subscriptions.get(name)
        held = self._deliveries.get(name)
        if held is not None and held[0].subscription != subscription:
            self._end(name)
            held = None
        if held is None and subscription is not None and not subscription.is_paused:
            self._begin(subscription)

    def _begin(self, subscription: PushSubscription) -> None:
        delivery = PushDelivery(
            self._clients.own(),
            subscription,
            lambda: self.store.progress.get(subscription.id, DeliveryProgress()),
            lambda: CallbackSender(self.rules),
            owner=self._name,
        )
        self._deliveries[subscription.id] = delivery, asyncio.ensure_future(delivery.run())

    def _end(self, name: str) -> None:
        delivery, task = self._deliveries.pop(name)
        task.cancel()
        ending = asyncio.ensure_future(self._ended(delivery, task))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _ended(self, delivery: PushDelivery, task: asyncio.Task[None]) -> None:
        await asyncio.gather(task, return_exceptions=True)
        if delivery.is_dirty and delivery.subscription.id in self.store.subscriptions:
            await self._write(delivery)

    async def _note(self) -> None:
        """Write down from time to time how deliveries go, for other gateways to tell."""
        while True:
            await asyncio.sleep(_NOTE_SECONDS)
            for delivery, _ in list(self._deliveries.values()):
                if delivery.is_dirty and delivery.is_owner:
                    await self._write(delivery)

    async def _write(self, delivery: PushDelivery) -> None:
        delivery.is_dirty = False
        delivery.progress.updated_ms = now_ms()
        try:
            await self.store.note(delivery.subscription.id, delivery.progress)
        except (ConnectionLost, Unavailable, AuthenticationRefused, CodedError) as error:
            delivery.is_dirty = True
            log.info("progress could not be written", subscription=delivery.subscription.id, reason=str(error))
