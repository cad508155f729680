"""Callers' credentials as the brokers' users: each has a client of its own, and the broker alone decides.

Basic is PLAIN or SCRAM, as the gateway is told; bearer is OAUTHBEARER; a certificate stands for the user it is mapped
to. Where brokers have no SASL everybody is anonymous.
"""

import asyncio
import base64
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from headrace.client.aio.client import Client
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.core.sasl import OAUTHBEARER, credentials
from headrace.web.messages import Request
from headrace.web.problem import Problem

from .settings import Account, Settings

CONNECT_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 15.0
_CHALLENGE: Final = (
    (b"www-authenticate", b'Basic realm="headrace", charset="UTF-8"'),
    (b"www-authenticate", b"Bearer"),
)
_LONGEST: Final = 16 * 1024
_BY_TOKEN: Final = ("sub:", "token:")
"""How names of callers begin that showed a token."""


class Caller(NamedTuple):
    """Who calls: `principal` names the user, `account` or `token` proves it."""

    principal: str = ""
    account: Account | None = None
    token: str | None = None


ANYBODY: Final = Caller()


def principal_at_brokers(name: str) -> str | None:
    """By which principal brokers know a caller of that name; None where they alone can tell: tokens, and nobody."""
    return None if not name or name.startswith(_BY_TOKEN) else f"User:{name}"


def unauthorized(detail: str) -> Problem:
    """The caller must say who it is, or is not believed."""
    return Problem(401, detail, code="unauthenticated", headers=_CHALLENGE)


def identify(request: Request, settings: Settings) -> Caller:
    """Who a request comes from; `Problem` 401 when brokers want to know and it does not say."""
    if settings.mechanism is None:
        return ANYBODY
    header = request.fields.get(b"authorization")
    if header is not None:
        found = _from_header(header)
        if found.token is None and settings.mechanism == OAUTHBEARER:
            raise unauthorized("the brokers take bearer tokens, not names and passwords")
        return found
    name = (request.scope.get("state") or {}).get("certificate", "")
    account = settings.certificates.get(name) if name else None
    if account is None:
        raise unauthorized("say who you are: basic or bearer credentials, which are handed to the brokers")
    return Caller(account.username, account)


def _from_header(header: bytes) -> Caller:
    scheme, _, value = header.partition(b" ")
    if len(header) > _LONGEST:
        raise unauthorized("these credentials are too long")
    if scheme.lower() == b"basic":
        return _basic(value.strip())
    if scheme.lower() == b"bearer":
        token = value.strip().decode("latin-1")
        return Caller(_subject(token), token=token)
    raise unauthorized("credentials are basic or bearer")


def _basic(value: bytes) -> Caller:
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        raise unauthorized("these basic credentials are not base64 of UTF-8") from None
    if not colon or not name or "\0" in name + password:
        raise unauthorized("basic credentials are a name, a colon and a password")
    return Caller(name, Account(username=name, password=password))


def _subject(token: str) -> str:
    """Whom a token speaks of. Nothing is decided by it: brokers check the token itself."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return f"sub:{claims['sub']}"
    except (IndexError, KeyError, TypeError, ValueError):
        return f"token:{hashlib.sha256(token.encode()).hexdigest()}"


def connection_settings(settings: Settings, identity: Caller) -> ConnectionSettings:
    """How connections of a user are made."""
    exchange = mechanism = None
    if settings.mechanism is not None and identity != ANYBODY:
        mechanism = OAUTHBEARER if identity.token is not None else settings.mechanism
        account = identity.account or Account(username="", password="")
        exchange = credentials(mechanism, account.username, account.password, identity.token)
    return ConnectionSettings(
        client_id="headrace-gateway",
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        tls=settings.broker_tls,
        mechanism=mechanism,
        exchange=exchange,
    )


class Clients:
    """Clients of users, kept while they are used; the one used least recently makes room."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._clients: OrderedDict[Caller, Client] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._anybody: Client | None = None

    def of(self, request: Request) -> Client:
        """The client of whoever makes a request."""
        if self.settings.mechanism is None:
            return self._anybody or self._anonymous()
        return self.get(identify(request, self.settings))

    async def proved(self, request: Request) -> Client:
        """The same once a broker has let the caller in: for what is decided here by its name, and not by brokers."""
        client = self.of(request)
        if self.settings.mechanism is not None:
            await client.cluster.any()
        return client

    def user_of(self, request: Request) -> str | None:
        """The user that a request comes from, where a broker has let it in with these credentials before."""
        if self.settings.mechanism is None:
            return None
        try:
            caller = identify(request, self.settings)
        except Problem:
            return None
        client = self._clients.get(caller)
        return caller.principal if client is not None and client.cluster.has_answered else None

    def own(self) -> Client:
        """The gateway's own client."""
        account = self.settings.own
        if self.settings.mechanism is None or account is None:
            return self._anybody or self._anonymous()
        return self.get(Caller(account.username, account))

    def get(self, identity: Caller) -> Client:
        client = self._clients.get(identity)
        if client is None:
            client = self._made(identity)
            self._clients[identity] = client
            self._make_room()
        self._clients.move_to_end(identity)
        return client

    async def close(self) -> None:
        """Close all of them."""
        clients = [*self._clients.values(), *([self._anybody] if self._anybody else [])]
        self._clients.clear()
        self._anybody = None
        await asyncio.gather(*(client.close() for client in clients), *self._closing)

    def _anonymous(self) -> Client:
        self._anybody = self._made(ANYBODY)
        return self._anybody

    def _made(self, identity: Caller) -> Client:
        settings = self.settings
        return Client(
            settings.bootstrap,
            connection_settings(settings, identity),
            principal=identity.principal,
            patience=settings.patience,
        )

    def _make_room(self) -> None:
        """Close who is used least, of those with nothing under way: those first who no broker has let in yet, so that
        who makes up names and passwords drives out no user."""
        others = list(self._clients.items())[:-1]
        for identity, client in sorted(others, key=lambda each: each[1].cluster.has_answered):
            if len(self._clients) <= self.settings.most_clients:
                return
            if not client.uses and not client.producer.in_flight:
                del self._clients[identity]
                task = asyncio.ensure_future(client.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        if len(self._clients) > self.settings.most_clients:
            newest = next(reversed(self._clients))
            del self._clients[newest]
            raise Problem(503, "too many users at the same time; try again", headers=((b"retry-after", b"1"),))


@asynccontextmanager
async def using(client: Client) -> AsyncIterator[Client]:
    """Keep a client open while the block runs."""
    client.uses += 1
    try:
        yield client
    finally:
        client.uses -= 1
