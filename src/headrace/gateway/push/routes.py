"""Subscriptions over HTTP: made, shown, paused, resumed, removed."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from secrets import token_hex
from typing import Annotated, Any, Final

from msgspec import UNSET, Struct

from headrace.client.aio import admin, groups
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import fetch, list_offsets
from headrace.client.core.offsets import EARLIEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.checking import text_meta
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Reply, Routes

from ..credentials import Clients
from ..group_routes import lag, queue_lag
from ..names import Next, require_not_internal
from ..paging import PageQuery, page
from ..queue_routes import begin_at
from ..read_routes import READ_PROBLEMS
from ..topic_routes import wait_until_known
from .addresses import AddressRefused, parse_callback
from .filters import plain
from .manager import Manager
from .model import NewSubscription, PushSubscription, SubscriptionStatus, SubscriptionView, header_fault
from .signing import key_of, new_secret

MOST_SUBSCRIPTIONS: Final = 1000
MOST_OF_ONE_USER: Final = 200
"""Subscriptions of a user with a name; where nobody has one all are one user's."""
_PATH: Final = "/api/v1/subscriptions"
_EXAMPLE: Final = {
    "topic": "orders",
    "callback_url": "https://example.com/hook",
    "max_attempts": 5,
    "dead_letter": "orders.failed",
    "filter": {"json": {"total": {"gte": 5}}},
}


class SubscriptionPath(Struct, frozen=True):
    """A path with a subscription."""

    id: Annotated[str, text_meta(r"^sub_[0-9a-f]{16}\Z", "a subscription's id", "sub_0123456789abcdef")]


class Subscriptions(Struct):
    """A page of subscriptions, by id."""

    subscriptions: list[SubscriptionView]
    next: Next = UNSET


Find = Callable[[Request, str], Awaitable[PushSubscription]]
"""The caller's own subscription of an id."""


def push_routes(clients: Clients, manager: Manager) -> Routes:
    """The routes of subscriptions."""
    routes = Routes(tag="Push", about="Messages posted to a callback: at least once, in order, signed.")
    store = manager.store

    async def find(request: Request, name: str) -> PushSubscription:
        client = await clients.proved(request)
        await store.synced()
        found = store.subscriptions.get(name)
        if found is None or found.principal != client.principal:
            raise Problem(404, "there is no such subscription", code="unknown-subscription")
        return found

    _add_creation(routes, clients, manager)
    _add_views(routes, clients, manager, find)
    _add_changes(routes, clients, manager, find)
    return routes


def _add_creation(routes: Routes, clients: Clients, manager: Manager) -> None:
    store = manager.store

    @routes.post(
        _PATH,
        "Subscribe a callback to a topic.",
        about=(
            "Each message, or each batch, is posted to callback_url until it answers 2xx; after max_attempts it goes "
            "to the dead-letter topic and the next one follows. Signed as Standard Webhooks has it; the secret is "
            "shown in this answer only."
        ),
        body=Body("What to deliver where.", NewSubscription, examples={"application/json": _EXAMPLE}),
        answers={
            201: Reply("A subscription, with its secret.", SubscriptionView),
            409: Reply("The group is another subscription's, or has members of another kind."),
            **READ_PROBLEMS,
        },
    )
    async def create_subscription(request: Request, body: NewSubscription) -> Answer:
        client = await clients.proved(request)
        subscription = _subscription(body, client.principal)
        for topic in (subscription.topic, subscription.dead_letter):
            require_not_internal(topic)
        await _check_callback(manager, subscription.callback_url)
        await _check_rights(client, subscription)
        await _ensure_dead_letter(client, subscription.dead_letter)
        await _check_writes(client, subscription.dead_letter)
        await store.ensure_topic()
        await store.synced()
        _check_room(manager, subscription)
        await store.put(subscription)
        if subscription.id not in store.subscriptions:
            raise _taken(subscription.group)
        location = f"{_PATH}/{subscription.id}".encode()
        return json_answer(subscription.view(subscription.secret), 201, ((b"location", location),))


def _add_views(routes: Routes, clients: Clients, manager: Manager, find: Find) -> None:
    store = manager.store

    @routes.get(
        _PATH,
        "List subscriptions.",
        query=PageQuery,
        answers={200: Reply("The caller's own.", Subscriptions), **READ_PROBLEMS},
    )
    async def list_subscriptions(request: Request, query: PageQuery) -> Answer:
        client = await clients.proved(request)
        await store.synced()
        own = [each.view() for each in store.subscriptions.values() if each.principal == client.principal]
        return json_answer(Subscriptions(*page(own, lambda each: each.id, query)))

    @routes.get(
        f"{_PATH}/{{id}}",
        "Show a subscription.",
        path=SubscriptionPath,
        answers={200: Reply("It.", SubscriptionView), **READ_PROBLEMS},
    )
    async def describe_subscription(request: Request, path: SubscriptionPath) -> Answer:
        return json_answer((await find(request, path.id)).view())

    @routes.get(
        f"{_PATH}/{{id}}/status",
        "Show how deliveries go.",
        about="Counts are those of the gateway that delivers, at most seconds old; offsets are what is committed.",
        path=SubscriptionPath,
        answers={200: Reply("Counts, the last error, the lag.", SubscriptionStatus), **READ_PROBLEMS},
    )
    async def subscription_status(request: Request, path: SubscriptionPath) -> Answer:
        found = await find(request, path.id)
        progress = asdict(manager.progress(found.id))
        read_lag = queue_lag if found.is_queue else lag
        behind = await read_lag(clients.own(), found.group, found.topic)
        status = SubscriptionStatus(
            id=found.id,
            state="paused" if found.is_paused else "active",
            owner=progress.pop("owner") or None,
            lag=behind.lag,
            offsets=behind.offsets,
            **progress,
        )
        return json_answer(status)


def _add_changes(routes: Routes, clients: Clients, manager: Manager, find: Find) -> None:
    store = manager.store

    async def change(request: Request, name: str, *, is_paused: bool) -> Answer:
        found = await find(request, name)
        if found.is_paused and not is_paused:  # perhaps because a right was withdrawn
            client = clients.of(request)
            await _check_reads(client, found)
            await _check_writes(client, found.dead_letter)
        if found.is_paused != is_paused:
            found = replace(found, is_paused=is_paused)
            await store.put(found)
        return json_answer(found.view())

    async def pause_subscription(request: Request, path: SubscriptionPath) -> Answer:
        return await change(request, path.id, is_paused=True)

    async def resume_subscription(request: Request, path: SubscriptionPath) -> Answer:
        return await change(request, path.id, is_paused=False)

    changed: dict[str, Any] = {
        "path": SubscriptionPath,
        "answers": {200: Reply("As it is now.", SubscriptionView), **READ_PROBLEMS},
    }
    routes.add("POST", f"{_PATH}/{{id}}/pause", "Stop delivering.", pause_subscription, **changed)
    routes.add("POST", f"{_PATH}/{{id}}/resume", "Go on where it stopped.", resume_subscription, **changed)

    @routes.delete(
        f"{_PATH}/{{id}}",
        "Remove a subscription.",
        about="Its group stays, with what it has committed.",
        path=SubscriptionPath,
        answers={204: Reply("It is gone."), **READ_PROBLEMS},
    )
    async def delete_subscription(request: Request, path: SubscriptionPath) -> Answer:
        await store.remove((await find(request, path.id)).id)
        return Answer(204)


def _subscription(wanted: NewSubscription, principal: str) -> PushSubscription:
    name = f"sub_{token_hex(8)}"
    secret = new_secret() if wanted.secret is UNSET else wanted.secret
    try:
        key_of(secret)
    except ValueError as error:
        raise bad_request(f"the secret is not usable: {error}") from None
    if wanted.queue and wanted.batch is not UNSET:
        raise bad_request("messages of a queue are delivered one by one: leave 'batch' out")
    fault = header_fault(wanted.headers)
    if fault:
        raise bad_request(fault)
    return PushSubscription(
        id=name,
        topic=wanted.topic,
        group=f"push-{name}" if wanted.group is UNSET else wanted.group,
        callback_url=wanted.callback_url,
        secret=secret,
        dead_letter=f"{wanted.topic[:237]}.dead-letter" if wanted.dead_letter is UNSET else wanted.dead_letter,
        principal=principal,
        filter=None if wanted.filter is UNSET else plain(wanted.filter),
        batch=0 if wanted.batch is UNSET else wanted.batch.max_messages,
        max_attempts=wanted.max_attempts,
        initial_ms=wanted.backoff.initial_ms,
        max_ms=max(wanted.backoff.max_ms, wanted.backoff.initial_ms),
        timeout_ms=wanted.timeout_ms,
        start=wanted.start,
        format=wanted.format,
        headers=wanted.headers,
        is_queue=wanted.queue,
    )


async def _check_callback(manager: Manager, url: str) -> None:
    """Refuse now what would be refused at every delivery; a name that does not resolve yet may do so later."""
    try:
        callback = parse_callback(url)
        infos = await asyncio.get_running_loop().getaddrinfo(callback.host, callback.port, type=socket.SOCK_STREAM)
        manager.rules.check(callback.host, dict.fromkeys(str(info[4][0]) for info in infos))
    except AddressRefused as error:
        raise bad_request(str(error), "callback-refused") from None
    except (OSError, UnicodeError) as error:
        raise bad_request(f"the callback's host cannot be resolved: {error}", "callback-refused") from None


async def _check_rights(client: Client, subscription: PushSubscription) -> None:
    """Who subscribes must itself be allowed to read the topic in that group: brokers are asked in its name.

    The gateway reads as its own user, who may do more: else a subscription would lend that.
    """
    await _check_reads(client, subscription)
    if subscription.is_queue:
        await begin_at(client, subscription.group, subscription.start)
        return
    found = await groups.describe(client.cluster, subscription.group)
    if found.members:
        raise _taken(subscription.group)


async def _check_reads(client: Client, subscription: PushSubscription) -> None:
    start = (await list_offsets(client.cluster, subscription.topic, {0: EARLIEST}))[0][0]
    await fetch(client.cluster, TopicPartition(subscription.topic, 0), start, max_bytes=1)
    if not subscription.is_queue:
        await groups.committed(client.cluster, subscription.group, [TopicPartition(subscription.topic, 0)])
    await groups.check_reads(client.cluster, subscription.group)


async def _check_writes(client: Client, topic: str) -> None:
    """And to write to the topic that takes what cannot be delivered."""
    if not await admin.may_write(client.cluster, topic):
        raise CodedError(ErrorCode.topic_authorization_failed, f"no right to write to '{topic}'")


async def _ensure_dead_letter(client: Client, topic: str) -> None:
    try:
        await client.cluster.topic(topic)
    except CodedError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        try:
            await admin.create_topic(client.cluster, topic)
        except CodedError as refused:
            if refused.code is not ErrorCode.topic_already_exists:
                raise
        await wait_until_known(client.cluster, topic)


def _check_room(manager: Manager, subscription: PushSubscription) -> None:
    known = manager.store.subscriptions.values()
    if any(each.group == subscription.group for each in known):
        raise _taken(subscription.group)
    if len(known) >= MOST_SUBSCRIPTIONS:
        raise Problem(409, f"there are {MOST_SUBSCRIPTIONS} subscriptions already", code="too-many-subscriptions")
    user = subscription.principal
    if user and sum(each.principal == user for each in known) >= MOST_OF_ONE_USER:
        raise Problem(
            409, f"you have {MOST_OF_ONE_USER} subscriptions already; delete some", code="too-many-subscriptions"
        )


def _taken(group: str) -> Problem:
    return Problem(409, f"group '{group}' has members, or is another subscription's", code="group-taken")
