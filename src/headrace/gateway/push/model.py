"""Push subscriptions and their delivery progress, as values."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from headrace.web.shapes import Array, Boolean, Choice, Integer, Mapped, Nullable, Object, Text

from ..names import GROUP, TOPIC
from . import filters

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_OURS: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"}
)

_URL: Final = Text(least=1, most=2048)
_BACKOFF: Final = Object({"initial_ms": Integer(1, 3_600_000), "max_ms": Integer(1, 86_400_000)})
CREATE: Final = Object(
    {
        "topic": TOPIC,
        "callback_url": _URL,
        "group": GROUP,
        "filter": filters.SHAPE,
        "batch": Object({"max_records": Integer(1, 1000)}, required=("max_records",)),
        "max_attempts": Integer(1, 1000),
        "backoff": _BACKOFF,
        "timeout_ms": Integer(100, 120_000),
        "dead_letter": TOPIC,
        "from": Choice("earliest", "latest"),
        "format": Choice("auto", "base64"),
        "headers": Mapped(Text(most=4096), most=20),
        "secret": Text(least=20, most=200),
    },
    required=("topic", "callback_url"),
)
"""What a caller gives to subscribe."""

VIEW: Final = Object(
    {
        "id": Text(),
        "topic": Text(),
        "group": Text(),
        "callback_url": Text(),
        "filter": Nullable(Object({}, open=True)),
        "batch": Nullable(Object({}, open=True)),
        "max_attempts": Integer(),
        "backoff": Object({"initial_ms": Integer(), "max_ms": Integer()}),
        "timeout_ms": Integer(),
        "dead_letter": Text(),
        "from": Text(),
        "format": Text(),
        "headers": Array(Text()),
        "state": Choice("active", "paused"),
        "secret": Text(),
    }
)
STATUS: Final = Object(
    {
        "id": Text(),
        "state": Choice("active", "paused"),
        "owner": Nullable(Text()),
        "delivered": Integer(),
        "filtered": Integer(),
        "failed_attempts": Integer(),
        "dead_lettered": Integer(),
        "last_error": Nullable(Text()),
        "last_delivery_ms": Nullable(Integer()),
        "retrying": Boolean(),
        "lag": Integer(),
        "offsets": Array(Object({}, open=True)),
        "updated_ms": Nullable(Integer()),
    }
)


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
    """Records in one delivery; 0 for single records."""
    max_attempts: int = 10
    initial_ms: int = 500
    max_ms: int = 60_000
    timeout_ms: int = 10_000
    start: str = "latest"
    format: str = "auto"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_paused: bool = False

    def encode(self) -> bytes:
        """As it stands in the topic of subscriptions."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> "PushSubscription":
        """ValueError or TypeError for what is no subscription; members of a later version are left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(data).items() if name in known})

    def view(self) -> dict[str, Any]:
        """What its owner is shown: all but the secret, and of headers only the names."""
        return {
            "id": self.id,
            "topic": self.topic,
            "group": self.group,
            "callback_url": self.callback_url,
            "filter": self.filter,
            "batch": {"max_records": self.batch} if self.batch else None,
            "max_attempts": self.max_attempts,
            "backoff": {"initial_ms": self.initial_ms, "max_ms": self.max_ms},
            "timeout_ms": self.timeout_ms,
            "dead_letter": self.dead_letter,
            "from": self.start,
            "format": self.format,
            "headers": sorted(self.headers),
            "state": "paused" if self.is_paused else "active",
        }


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
