"""Push subscriptions and their delivery progress, as values."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec import field as member

from headrace.client.core.rights import Right
from headrace.protocol.acl import AclOperation, ResourceType

from ..group_routes import Lag
from ..names import Group, Topic
from .filters import Filter

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_OURS: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"}
)

_Attempts = Annotated[int, Meta(ge=1, le=1000, description="After that it is a dead letter.", examples=[10])]
_State = Annotated[Literal["active", "paused"], Meta(examples=["active"])]
_Id = Annotated[str, Meta(examples=["sub_0123456789abcdef"])]


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    """Several messages in one delivery."""

    max_messages: Annotated[int, Meta(ge=1, le=1000, examples=[100])]


class Backoff(Struct, frozen=True, forbid_unknown_fields=True):
    """The pause after an attempt: doubled each time, up to the most."""

    initial_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 500
    max_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000


class NewSubscription(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to deliver where."""

    topic: Topic
    callback_url: Annotated[str, Meta(min_length=1, max_length=2048, examples=["https://example.com/hook"])]
    group: Group | UnsetType = UNSET
    queue: Annotated[
        bool,
        Meta(
            description="Read the topic as a queue, in a share group: messages are delivered side by side, in no "
            "order, and one that is refused holds up no other."
        ),
    ] = False
    filter: Filter | UnsetType = UNSET
    batch: Batch | UnsetType = UNSET
    max_attempts: _Attempts = 10
    backoff: Backoff = Backoff()
    timeout_ms: Annotated[int, Meta(ge=100, le=120_000)] = 10_000
    dead_letter: Annotated[Topic, Meta(description="Where it goes after the last attempt.")] | UnsetType = UNSET
    start: Annotated[Literal["earliest", "latest"], Meta(description="Where a new group begins.")] = member(
        default="latest", name="from"
    )
    format: Annotated[Literal["auto", "base64"], Meta(description="How values are shown.")] = "auto"
    headers: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(max_length=20, description="Sent with each delivery.", examples=[{"Authorization": "Bearer x"}]),
    ] = {}
    secret: (
        Annotated[
            str,
            Meta(
                min_length=20,
                max_length=200,
                description="To sign with.",
                examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
            ),
        ]
        | UnsetType
    ) = UNSET


class SubscriptionView(Struct, kw_only=True, omit_defaults=False):
    """A subscription: all but the secret, and of headers only the names."""

    id: _Id
    topic: Annotated[str, Meta(examples=["orders"])]
    group: Annotated[str, Meta(examples=["hook"])]
    callback_url: Annotated[str, Meta(examples=["https://example.com/hook"])]
    queue: bool
    filter: Annotated[dict[str, Any] | None, Meta(examples=[{"json": {"total": {"gte": 10}}}])]
    batch: Batch | None
    max_attempts: _Attempts
    backoff: Backoff
    timeout_ms: Annotated[int, Meta(examples=[10_000])]
    dead_letter: Annotated[str, Meta(examples=["orders.dead-letter"])]
    start: Annotated[str, Meta(examples=["latest"])] = member(name="from")
    format: Annotated[str, Meta(examples=["auto"])]
    headers: Annotated[list[str], Meta(examples=[["Authorization"]])]
    state: _State
    secret: Annotated[
        str | UnsetType,
        Meta(description="Only in the answer that made it.", examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"]),
    ] = UNSET


class SubscriptionStatus(Struct, kw_only=True):
    """How deliveries go."""

    id: _Id
    state: _State
    owner: Annotated[str | None, Meta(description="The gateway that delivers.", examples=["gateway-1"])]
    delivered: Annotated[int, Meta(examples=[41])]
    filtered: Annotated[int, Meta(examples=[0])]
    failed_attempts: Annotated[int, Meta(examples=[2])]
    dead_lettered: Annotated[int, Meta(examples=[0])]
    last_error: Annotated[str | None, Meta(examples=["offset 7 of partition 0: HTTP 500"])]
    last_delivery_ms: Annotated[int | None, Meta(examples=[1_700_000_000_000])]
    retrying: Annotated[bool, Meta(examples=[False])]
    lag: Annotated[int, Meta(examples=[0])]
    offsets: list[Lag]
    updated_ms: Annotated[int | None, Meta(examples=[1_700_000_000_000])]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSubscription:
    """A subscription: topic, filter, callback and retries."""

    id: str
    topic: str
    group: str
    callback_url: str
    secret: str
    dead_letter: str
    principal: str = ""
    """Who made it, and alone may see and change it."""
    filter: Mapping[str, Any] | None = None
    batch: int = 0
    """Messages in one delivery; 0 for single ones."""
    max_attempts: int = 10
    initial_ms: int = 500
    max_ms: int = 60_000
    timeout_ms: int = 10_000
    start: str = "latest"
    format: str = "auto"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_paused: bool = False
    is_queue: bool = False
    """Whether it reads the topic as a queue, as a member of a share group."""

    def encode(self) -> bytes:
        """As it stands in the topic of subscriptions."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> "PushSubscription":
        """ValueError or TypeError for what is no subscription; members of a later version are left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(data).items() if name in known})

    @property
    def rights(self) -> list[Right]:
        """What its owner must be allowed, as long as it is delivered."""
        return [
            (AclOperation.READ, ResourceType.TOPIC, self.topic),
            (AclOperation.READ, ResourceType.GROUP, self.group),
            (AclOperation.WRITE, ResourceType.TOPIC, self.dead_letter),
        ]

    def view(self, secret: str | UnsetType = UNSET) -> SubscriptionView:
        """What its owner is shown."""
        return SubscriptionView(
            id=self.id,
            topic=self.topic,
            group=self.group,
            callback_url=self.callback_url,
            queue=self.is_queue,
            filter=None if self.filter is None else dict(self.filter),
            batch=Batch(self.batch) if self.batch else None,
            max_attempts=self.max_attempts,
            backoff=Backoff(self.initial_ms, self.max_ms),
            timeout_ms=self.timeout_ms,
            dead_letter=self.dead_letter,
            start=self.start,
            format=self.format,
            headers=sorted(self.headers),
            state="paused" if self.is_paused else "active",
            secret=secret,
        )


@dataclass(slots=True, kw_only=True)
class DeliveryProgress:
    """How deliveries go; kept by whoever delivers, and written down for the others from time to time."""

    owner: str = ""
    delivered: int = 0
    filtered: int = 0
    failed_attempts: int = 0
    dead_lettered: int = 0
    last_error: str | None = None
    last_delivery_ms: int | None = None
    retrying: bool = False
    updated_ms: int | None = None

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> "DeliveryProgress":
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(data).items() if name in known})


def header_fault(headers: Mapping[str, str]) -> str:
    """What is wrong with headers that a caller wants sent; empty where nothing is."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            return f"the header '{name[:80]}' cannot be sent: names are tokens, values printable ASCII"
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            return f"the header '{name}' is the gateway's own"
    return ""


def pause_ms(subscription: PushSubscription, attempt: int, chance: float, retry_after: float = 0.0) -> float:
    """How long to wait after an attempt (the first is 1): doubled each time up to the most, half of it by chance.

    What the callback asked for (`Retry-After`) holds where it is longer, up to ten times the most.
    """
    whole = float(min(subscription.initial_ms << min(attempt - 1, 40), subscription.max_ms))
    asked = min(retry_after * 1000, 10.0 * subscription.max_ms)
    return max(whole * (0.5 + chance / 2), asked)
