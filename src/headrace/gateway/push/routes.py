"""Subscriptions over HTTP: made, shown, paused, resumed, removed."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from secrets import token_hex
from typing import Any, Final

from headrace.client.aio import admin, groups
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import fetch, list_offsets
from headrace.client.core.offsets import EARLIEST
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem, bad_request
from headrace.web.routes import Body, Reply, Routes
from headrace.web.shapes import Array, Object, Text

from ..credentials import Clients
from ..group_routes import lag
from ..rawjson import loads
from ..read_routes import READ_PROBLEMS
from ..topic_routes import wait_until_known
from .addresses import AddressRefused, parse_callback
from .filters import check_filter
from .manager import Manager
from .model import CREATE, STATUS, VIEW, PushSubscription, header_fault
from .signing import key_of, new_secret

MOST_SUBSCRIPTIONS: Final = 1000
_PATH: Final = "/api/v1/subscriptions"
_ID: Final = {"id": Text(pattern="sub_[0-9a-f]{16}", least=20, most=20, wanted="a subscription's id")}

Find = Callable[[Request], Awaitable[PushSubscription]]
"""The caller's own subscription that a request names."""


def push_routes(clients: Clients, manager: Manager) -> Routes:
    """The routes of subscriptions."""
    routes = Routes(tag="Push", about="Records posted to a callback: at least once, in order, signed.")
    store = manager.store

    async def find(request: Request) -> PushSubscription:
        client = await clients.proved(request)
        await store.synced()
        found = store.subscriptions.get(request.params["id"])
        if found is None or found.principal != client.principal:
            raise Problem(404, "there is no such subscription", code="unknown-subscription")
        return found

    _add_creation(routes, clients, manager)
    _add_views(routes, clients, manager, find)
    _add_changes(routes, manager, find)
    return routes


def _add_creation(routes: Routes, clients: Clients, manager: Manager) -> None:
    store = manager.store

    @routes.post(
        _PATH,
        "Subscribe a callback to a topic.",
        about=(
            "Each record, or each batch, is posted to callback_url until it answers 2xx; after max_attempts it goes to "
            "the dead-letter topic and the next one follows. Signed as Standard Webhooks has it; the secret is shown "
            "in this answer only."
        ),
        body=Body("What to deliver where.", {"application/json": CREATE}),
        answers={
            201: Reply("A subscription, with its secret.", VIEW),
            409: Reply("The group is another subscription's, or has members of another kind."),
            **READ_PROBLEMS,
        },
    )
    async def create_subscription(request: Request) -> Answer:
        wanted = CREATE.read(loads(await request.body()), "the subscription")
        client = clients.of(request)
        subscription = _subscription(wanted, client.principal)
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
        view = {**subscription.view(), "secret": subscription.secret}
        return json_answer(view, 201, ((b"location", location),))


def _add_views(routes: Routes, clients: Clients, manager: Manager, find: Find) -> None:
    store = manager.store

    @routes.get(
        _PATH,
        "List subscriptions.",
        answers={200: Reply("The caller's own.", Object({"subscriptions": Array(VIEW)})), **READ_PROBLEMS},
    )
    async def list_subscriptions(request: Request) -> Answer:
        client = await clients.proved(request)
        await store.synced()
        own = [each.view() for each in store.subscriptions.values() if each.principal == client.principal]
        return json_answer({"subscriptions": sorted(own, key=lambda each: str(each["id"]))})

    @routes.get(
        f"{_PATH}/{{id}}", "Show a subscription.", params=_ID, answers={200: Reply("It.", VIEW), **READ_PROBLEMS}
    )
    async def describe_subscription(request: Request) -> Answer:
        return json_answer((await find(request)).view())

    @routes.get(
        f"{_PATH}/{{id}}/status",
        "Show how deliveries go.",
        about="Counts are those of the gateway that delivers, at most seconds old; offsets are what is committed.",
        params=_ID,
        answers={200: Reply("Counts, the last error, the lag.", STATUS), **READ_PROBLEMS},
    )
    async def subscription_status(request: Request) -> Answer:
        found = await find(request)
        progress = asdict(manager.progress(found.id))
        behind = await lag(clients.own(), found.group, found.topic)
        state = "paused" if found.is_paused else "active"
        owner = progress.pop("owner") or None
        status = {"id": found.id, "state": state, "owner": owner, **progress}
        return json_answer({**status, "lag": behind["lag"], "offsets": behind["offsets"]})


def _add_changes(routes: Routes, manager: Manager, find: Find) -> None:
    store = manager.store

    async def change(request: Request, *, is_paused: bool) -> Answer:
        found = await find(request)
        if found.is_paused != is_paused:
            found = replace(found, is_paused=is_paused)
            await store.put(found)
        return json_answer(found.view())

    async def pause_subscription(request: Request) -> Answer:
        return await change(request, is_paused=True)

    async def resume_subscription(request: Request) -> Answer:
        return await change(request, is_paused=False)

    changed: dict[str, Any] = {"params": _ID, "answers": {200: Reply("As it is now.", VIEW), **READ_PROBLEMS}}
    routes.add("POST", f"{_PATH}/{{id}}/pause", "Stop delivering.", pause_subscription, **changed)
    routes.add("POST", f"{_PATH}/{{id}}/resume", "Go on where it stopped.", resume_subscription, **changed)

    @routes.delete(
        f"{_PATH}/{{id}}",
        "Remove a subscription.",
        about="Its group stays, with what it has committed.",
        params=_ID,
        answers={204: Reply("It is gone."), **READ_PROBLEMS},
    )
    async def delete_subscription(request: Request) -> Answer:
        await store.remove((await find(request)).id)
        return Answer(204)


def _subscription(body: dict[str, Any], principal: str) -> PushSubscription:
    name = f"sub_{token_hex(8)}"
    secret = body.get("secret") or new_secret()
    try:
        key_of(secret)
    except ValueError as error:
        raise bad_request(f"the secret is not usable: {error}") from None
    fault = header_fault(body.get("headers", {}))
    if fault:
        raise bad_request(fault)
    check_filter(body.get("filter", {}))
    backoff = body.get("backoff", {})
    initial = backoff.get("initial_ms", 500)
    return PushSubscription(
        id=name,
        topic=body["topic"],
        group=body.get("group", f"push-{name}"),
        callback_url=body["callback_url"],
        secret=secret,
        dead_letter=body.get("dead_letter", f"{body['topic'][:237]}.dead-letter"),
        principal=principal,
        filter=body.get("filter"),
        batch=body.get("batch", {}).get("max_records", 0),
        max_attempts=body.get("max_attempts", 10),
        initial_ms=initial,
        max_ms=max(backoff.get("max_ms", 60_000), initial),
        timeout_ms=body.get("timeout_ms", 10_000),
        start=body.get("from", "latest"),
        format=body.get("format", "auto"),
        headers=body.get("headers", {}),
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
    start = (await list_offsets(client.cluster, subscription.topic, {0: EARLIEST}))[0][0]
    await fetch(client.cluster, TopicPartition(subscription.topic, 0), start, max_bytes=1)
    await groups.committed(client.cluster, subscription.group, [TopicPartition(subscription.topic, 0)])
    await groups.check_reads(client.cluster, subscription.group)
    found = await groups.describe(client.cluster, subscription.group)
    if found.members:
        raise _taken(subscription.group)


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


def _taken(group: str) -> Problem:
    return Problem(409, f"group '{group}' has members, or is another subscription's", code="group-taken")
