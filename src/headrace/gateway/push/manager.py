"""All subscriptions on this gateway: each active one has a `PushDelivery`; changes in the store start and end them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import structlog

from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.protocol.errors import CodedError, ProtocolViolation

from ..credentials import Clients, principal_at_brokers
from ..publishing import now_ms
from .addresses import AddressRules
from .delivery import PushDelivery
from .model import DeliveryProgress, PushSubscription
from .queue_delivery import QueueDelivery
from .sealing import Seal
from .sending import CallbackSender
from .store import Store

_NOTE_SECONDS: Final = 2.0
RIGHTS_SECONDS: Final = 2.5
"""How often brokers are asked what owners may still read; of who has lost a right, twice in a row, it is paused."""
_REFUSED_SECONDS: Final = 60.0
"""How long nothing is asked again once brokers have said that this gateway's user may not ask."""

log = structlog.get_logger(__name__)


class Manager:
    """Follows the store while it `runs`."""

    def __init__(self, clients: Clients) -> None:
        self.rules = AddressRules(clients.settings.push_allow)
        self.store = Store(clients.own, self._changed, Seal(clients.settings.push_keys))
        self._clients = clients
        self._name = clients.settings.advertise or f"{socket.gethostname()}-{os.getpid()}"
        self._deliveries: dict[str, tuple[PushDelivery, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._can_watch = True
        self._doubted: set[str] = set()
        """Subscriptions whose owners had lost a right at the last look: one broker may not have heard of it yet."""

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self.store.follow()), asyncio.ensure_future(self._note())]
        tasks.append(asyncio.ensure_future(self._watch_rights()))
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
        kind = QueueDelivery if subscription.is_queue else PushDelivery
        delivery = kind(
            self._clients.own(),
            subscription,
            lambda: self.store.progress.get(subscription.id, DeliveryProgress()),
            lambda: CallbackSender(self.rules),
            owner=self._name,
        )
        self._deliveries[subscription.id] = delivery, asyncio.ensure_future(delivery.run())

    def _end(self, name: str) -> None:
        self._doubted.discard(name)
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

    async def _watch_rights(self) -> None:
        """Pause what is delivered here for somebody who has lost the right to it: brokers are asked about each."""
        pause = RIGHTS_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = RIGHTS_SECONDS
            try:
                for delivery, _ in list(self._deliveries.values()):
                    if delivery.is_owner:
                        await self._check_rights(delivery)
                self._can_watch = True
            except (ConnectionLost, Unavailable, AuthenticationRefused, CodedError, ProtocolViolation) as error:
                if self._can_watch:
                    log.warning("rights of subscriptions cannot be looked at", reason=str(error))
                self._can_watch = False
                pause = _REFUSED_SECONDS if isinstance(error, CodedError) else RIGHTS_SECONDS

    async def _check_rights(self, delivery: PushDelivery) -> None:
        subscription = delivery.subscription
        principal = principal_at_brokers(subscription.principal)
        if principal is None:
            return
        lost = await self._clients.own().cluster.lacks(principal, subscription.rights)
        if not lost or self.store.subscriptions.get(subscription.id) != subscription:
            self._doubted.discard(subscription.id)
            return
        if subscription.id not in self._doubted:
            self._doubted.add(subscription.id)
            return
        self._doubted.discard(subscription.id)
        operation, kind, name = lost[0]
        reason = f"paused: {principal} may no longer {operation.name} {kind.name} {name}"
        log.warning("subscription paused", subscription=subscription.id, reason=reason)
        delivery.progress.last_error = reason
        await self._write(delivery)  # whoever sees it paused sees why
        await self.store.put(replace(subscription, is_paused=True))

    async def _write(self, delivery: PushDelivery) -> None:
        delivery.is_dirty = False
        delivery.progress.updated_ms = now_ms()
        try:
            await self.store.note(delivery.subscription.id, delivery.progress)
        except (ConnectionLost, Unavailable, AuthenticationRefused, CodedError) as error:
            delivery.is_dirty = True
            log.info("progress could not be written", subscription=delivery.subscription.id, reason=str(error))
